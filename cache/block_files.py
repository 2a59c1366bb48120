"""A folder of checked files: whole or not there, bounded, the least recently used going first."""

import logging
import os
import re
import time
from collections import Counter, OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass, field
from hashlib import blake2b
from itertools import count
from pathlib import Path
from threading import Lock

_log = logging.getLogger(__name__)

NAME = re.compile(r"([0-9a-f]{40})-(\d+)-[0-9a-f]{40}\.(?:full|end)")
TEMPORARY = ".writing-"
ABANDONED_S = 3600.0  # a file that is being written so long belongs to a process that was killed
CHECK_BYTES = 16


@dataclass(slots=True)
class Traffic:
    """Since the start. Each figure has one writer: a thread that writes files, or one that reads them."""

    num_bytes: dict[str, int] = field(default_factory=lambda: {"stored": 0, "loaded": 0})
    seconds: dict[str, float] = field(default_factory=lambda: {"stored": 0.0, "loaded": 0.0})
    failures: dict[str, int] = field(default_factory=lambda: {"stored": 0, "loaded": 0})


class BlockFiles:
    """Owns the files of a folder, which other servers may share: what they delete is a miss here. One thread writes,
    one reads, and any may ask. The index is what the folder held at the start and what was written since."""

    def __init__(self, folder: Path, max_bytes: int | None) -> None:
        """`max_bytes`: None takes half of what the disk has left beside these files. Raises OSError for a folder that
        cannot be made or read."""
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._folder = folder
        self._lock = Lock()
        self._sizes: OrderedDict[str, int] = OrderedDict()  # the least recently used first
        self._lengths: dict[str, Counter[int]] = {}  # of blocks, by parent
        self._serial = count()
        self._newest_ns = 0
        self._warned: set[str] = set()
        self.traffic = Traffic()
        self.used_bytes = 0
        self._read_folder()
        free_bytes = os.statvfs(folder).f_bavail * os.statvfs(folder).f_frsize
        self.max_bytes = (free_bytes + self.used_bytes) // 2 if max_bytes is None else max_bytes
        self._shrink()

    def has(self, name: str) -> bool:
        """Whether the index has the file."""
        return name in self._sizes

    def lengths(self, parent: str) -> list[int]:
        """Of the blocks that follow `parent`, longest first."""
        with self._lock:
            return sorted(self._lengths.get(parent, ()), reverse=True)

    def write(self, name: str, content: bytes) -> None:
        """Puts a file there, whole; where that fails it is not there, and the log says so once."""
        begun_s = time.monotonic()
        partial = self._folder / f"{TEMPORARY}{os.getpid()}-{next(self._serial)}"
        try:
            with os.fdopen(os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
                file.write(_check(name, content))
                file.write(content)
            self._stamp(partial)
            partial.rename(self._folder / name)
        except OSError as error:
            self._fail("stored", f"cannot be written: {error}. What does not get there is computed again.")
            _remove(partial)
            return
        self.traffic.num_bytes["stored"] += len(content)
        self.traffic.seconds["stored"] += time.monotonic() - begun_s
        self._note(name, len(content) + CHECK_BYTES)
        self._shrink()

    def read(self, name: str) -> memoryview | None:
        """What was written under this name; None where it is gone, unreadable or damaged."""
        begun_s = time.monotonic()
        try:
            whole = memoryview((self._folder / name).read_bytes())
        except FileNotFoundError:  # another server made room
            self._forget(name)
            return None
        except OSError as error:
            self._fail("loaded", f"cannot be read: {error}. What it keeps is computed again.")
            self._forget(name)
            return None
        content = whole[CHECK_BYTES:]
        if whole[:CHECK_BYTES] != _check(name, content):
            self._fail("loaded", f"holds a damaged file, {name}, which is deleted.")
            self._forget(name)
            _remove(self._folder / name)
            return None
        self.traffic.num_bytes["loaded"] += len(content)
        self.traffic.seconds["loaded"] += time.monotonic() - begun_s
        return content

    def touch(self, names: Iterable[str]) -> None:
        """Marks files as used now, the last of them as the most recent."""
        for name in names:
            with self._lock:
                if name not in self._sizes:
                    continue
                self._sizes.move_to_end(name)
            try:
                self._stamp(self._folder / name)
            except OSError:  # only the order of the next start is lost
                continue

    def _stamp(self, path: Path) -> None:
        """Marks a file as the youngest for the next start: the system's own clock is too coarse for that."""
        with self._lock:
            self._newest_ns = max(time.time_ns(), self._newest_ns + 1)
            newest_ns = self._newest_ns
        os.utime(path, ns=(newest_ns, newest_ns))

    def _read_folder(self) -> None:
        found: list[tuple[int, str, int]] = []
        with os.scandir(self._folder) as entries:
            for entry in entries:
                status = entry.stat()
                if NAME.fullmatch(entry.name):
                    found.append((status.st_mtime_ns, entry.name, status.st_size))
                elif entry.name.startswith(TEMPORARY) and time.time() - status.st_mtime > ABANDONED_S:
                    _remove(Path(entry.path))
        for _, name, size in sorted(found):
            self._note(name, size)

    def _note(self, name: str, size: int) -> None:
        with self._lock:
            if name not in self._sizes:
                parent, length = _parts(name)
                self._lengths.setdefault(parent, Counter())[length] += 1
            self.used_bytes += size - self._sizes.get(name, 0)
            self._sizes[name] = size
            self._sizes.move_to_end(name)

    def _forget(self, name: str) -> None:
        with self._lock:
            if name in self._sizes:
                self._drop(name)

    def _drop(self, name: str) -> None:
        self.used_bytes -= self._sizes.pop(name)
        parent, length = _parts(name)
        lengths = self._lengths[parent]
        lengths[length] -= 1
        if not lengths[length]:
            del lengths[length]
        if not lengths:
            del self._lengths[parent]

    def _shrink(self) -> None:
        while self.used_bytes > self.max_bytes:
            with self._lock:
                oldest = next(iter(self._sizes))
                self._drop(oldest)
            _remove(self._folder / oldest)

    def _fail(self, kind: str, sentence: str) -> None:
        self.traffic.failures[kind] += 1
        if kind not in self._warned:
            self._warned.add(kind)
            _log.warning("The cache's folder %s %s Further such failures are only counted.", self._folder, sentence)


def _check(name: str, content: bytes | memoryview) -> bytes:
    check = blake2b(name.encode(), digest_size=CHECK_BYTES)
    check.update(content)
    return check.digest()


def _parts(name: str) -> tuple[str, int]:
    parent, length, _ = name.split("-")
    return parent, int(length)


def _remove(path: Path) -> None:
    try:
        path.unlink(missing_ok=True)
    except OSError:  # it is not in the index, and the next start finds it again
        _log.info("%s stays behind", path)
