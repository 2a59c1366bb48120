"""The model cache on disk: folders that are made once and appear whole or not at all."""

import fcntl
import hashlib
import logging
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from corymb.models.errors import SourceError

_log = logging.getLogger(__name__)


def prepare(cache_dir: Path, name: str, fill: Callable[[Path], None]) -> Path:
    """Returns the cache's folder `name`, filled by `fill` if it is not there yet.

    Several processes may ask at once: one works, the others wait for it. A process that is killed leaves nothing that
    looks finished, and the next one starts again.
    """
    folder = cache_dir / "models" / name
    if folder.is_dir():
        return folder
    try:
        with _locked(cache_dir / "locks" / f"{name}.lock"):
            if not folder.is_dir():
                _fill(folder, fill)
    except OSError as error:
        raise SourceError(f"The model cache at {cache_dir} cannot be written: {error}.") from error
    return folder


def digest(*parts: object) -> str:
    """A short name for all `parts` together, to tell versions of a cached folder apart."""
    return hashlib.sha256("\0".join(map(str, parts)).encode()).hexdigest()[:12]


def _fill(folder: Path, fill: Callable[[Path], None]) -> None:
    partial = folder.with_name(f"{folder.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    try:
        fill(partial)
        partial.rename(folder)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Holds the lock file; the system lets go of it if the process dies."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            _log.info("Waiting for another process that prepares %s", path.stem)
            fcntl.flock(file, fcntl.LOCK_EX)
        yield
