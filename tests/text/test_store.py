"""Folders of the model cache appear whole or not at all."""

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from corymb.models.errors import SourceError
from corymb.models.store import digest, prepare

# Fills a folder slowly, and writes down that it did.
CHILD = """
import sys, time
from pathlib import Path
from corymb.models.store import prepare

def fill(folder):
    with (Path(sys.argv[1]) / "fills").open("a") as log:
        log.write("fill\\n")
    (folder / "half").write_text("1")
    time.sleep(float(sys.argv[2]))
    (folder / "whole").write_text("2")

print(prepare(Path(sys.argv[1]), "model", fill))
"""


def start(cache: Path, seconds: float) -> subprocess.Popen:
    command = [sys.executable, "-P", "-c", CHILD, str(cache), str(seconds)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def wait_for(path: Path) -> None:
    limit = time.monotonic() + 20
    while not path.exists():
        assert time.monotonic() < limit, path
        time.sleep(0.01)


def test_two_starts_at_once_fill_once(tmp_path: Path) -> None:
    children = [start(tmp_path, 0.5) for _ in range(3)]
    answers = {child.communicate(timeout=30)[0].strip() for child in children}
    assert answers == {str(tmp_path / "models" / "model")}
    assert (tmp_path / "fills").read_text() == "fill\n"
    assert (tmp_path / "models" / "model" / "whole").read_text() == "2"


def test_killed_start_leaves_nothing_that_looks_finished(tmp_path: Path) -> None:
    child = start(tmp_path, 60)
    wait_for(tmp_path / "models" / "model.partial" / "half")
    child.send_signal(signal.SIGKILL)
    child.communicate()
    assert not (tmp_path / "models" / "model").exists()
    assert start(tmp_path, 0).communicate(timeout=30)[0].strip() == str(tmp_path / "models" / "model")
    assert sorted(path.name for path in (tmp_path / "models" / "model").iterdir()) == ["half", "whole"]


def test_failed_fill_is_tried_again(tmp_path: Path) -> None:
    def fail(folder: Path) -> None:
        (folder / "half").write_text("")
        raise SourceError("The network is down.")

    with pytest.raises(SourceError, match="network"):
        prepare(tmp_path, "model", fail)
    assert list((tmp_path / "models").iterdir()) == []
    assert prepare(tmp_path, "model", lambda folder: None).is_dir()


def test_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(SourceError, match=f"cache at {tmp_path}/file cannot be written"):
        prepare(tmp_path / "file", "model", lambda folder: None)


def test_digest_tells_parts_apart() -> None:
    assert digest("ab", "c") != digest("a", "bc")
    assert digest("ab", 1) == digest("ab", "1")
