"""Files are whole or not there: after kills, damage, a full disk, and beside other servers."""

import logging
import os
import random
import signal
import time
from itertools import count
from pathlib import Path
from typing import NoReturn

import pytest

from corymb.cache import block_files
from corymb.cache.block_files import CHECK_BYTES, BlockFiles

NUM_KILLS = 50
SIZE = 20_000


def name(serial: int, *, length: int = 8, parent: int = 0) -> str:
    return f"{parent:040x}-{length}-{serial:040x}.full"


def content(serial: int) -> bytes:
    return serial.to_bytes(4, "little") * (SIZE // 4)


def write_for_ever(folder: Path, first: int, reports: int) -> NoReturn:
    files = BlockFiles(folder, 10_000_000)
    for serial in count(first):
        files.write(name(serial), content(serial))
        os.write(reports, b"%d\n" % serial)
    raise AssertionError


def test_a_writer_that_is_killed_leaves_no_half_file(tmp_path: Path) -> None:
    chooser, first = random.Random(3), 0
    for _ in range(NUM_KILLS):
        reading, writing = os.pipe()
        pid = os.fork()
        if not pid:
            write_for_ever(tmp_path, first, writing)
        os.close(writing)
        with os.fdopen(reading) as reports:
            first = int(reports.readline()) + 1
            time.sleep(chooser.random() * 0.003)
            os.kill(pid, signal.SIGKILL)
            first = max([first, *(int(line) + 1 for line in reports if line.endswith("\n"))])
        os.waitpid(pid, 0)
        files = BlockFiles(tmp_path, 10_000_000)
        newest = [serial for serial in range(max(first - 50, 0), first + 2) if files.has(name(serial))]
        assert newest, "what was reported is there"
        assert all(files.read(name(serial)) == content(serial) for serial in newest)
    assert files.traffic.failures == {"stored": 0, "loaded": 0}
    unfinished = [path for path in tmp_path.iterdir() if path.name.startswith(block_files.TEMPORARY)]
    assert len(unfinished) >= NUM_KILLS // 10, "a writer is mostly writing: kills must come in between"


@pytest.mark.parametrize("damage", ["flip", "cut", "grow", "swap"])
def test_a_damaged_file_is_a_miss_and_goes(tmp_path: Path, damage: str, caplog: pytest.LogCaptureFixture) -> None:
    files = BlockFiles(tmp_path, None)
    for serial in range(3):
        files.write(name(serial), content(serial))
        path = tmp_path / name(serial)
        whole = path.read_bytes()
        at = CHECK_BYTES + 77
        changed = {
            "flip": whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :],
            "cut": whole[:at],
            "grow": whole + b"\0",
            "swap": (tmp_path / name(0)).read_bytes() if serial else whole[:3],
        }
        path.write_bytes(changed[damage])
    with caplog.at_level(logging.WARNING):
        assert [files.read(name(serial)) for serial in range(3)] == [None] * 3
    assert len(caplog.records) == 1
    assert "damaged" in caplog.text
    assert list(tmp_path.iterdir()) == []
    assert (files.used_bytes, files.traffic.failures["loaded"]) == (0, 3)


def test_an_unreadable_file_is_a_miss_with_one_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    files = BlockFiles(tmp_path, None)
    for serial in range(2):
        files.write(name(serial), content(serial))
        (tmp_path / name(serial)).unlink()
        (tmp_path / name(serial)).mkdir()  # even root cannot read it
    with caplog.at_level(logging.WARNING):
        assert [files.read(name(serial)) for serial in range(2)] == [None, None]
    assert len(caplog.records) == 1
    assert not files.has(name(0))


def test_a_full_disk_is_told_once_and_leaves_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = BlockFiles(tmp_path, None)
    make = os.fdopen

    def full(number: int, mode: str) -> object:
        os.close(number)
        return make(os.open("/dev/full", os.O_WRONLY), mode)

    with monkeypatch.context() as patch, caplog.at_level(logging.WARNING):
        patch.setattr(block_files.os, "fdopen", full)
        for serial in range(3):
            files.write(name(serial), content(serial))
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert "No space left on device" in caplog.text
    assert list(tmp_path.iterdir()) == []
    assert files.read(name(0)) is None
    files.write(name(0), content(0))  # there is room again
    assert files.read(name(0)) == content(0)


def test_the_bound_holds_and_what_was_used_last_stays(tmp_path: Path) -> None:
    files = BlockFiles(tmp_path, 3 * (SIZE + CHECK_BYTES))
    for serial in range(3):
        files.write(name(serial), content(serial))
    files.touch([name(0)])
    files.write(name(3), content(3))
    assert [files.has(name(serial)) for serial in range(4)] == [True, False, True, True]
    assert sorted(path.name for path in tmp_path.iterdir()) == [name(serial) for serial in (0, 2, 3)]
    assert files.used_bytes == sum(path.stat().st_size for path in tmp_path.iterdir())
    files = BlockFiles(tmp_path, 2 * (SIZE + CHECK_BYTES))  # the next start knows the order and has a bound of its own
    assert [files.has(name(serial)) for serial in range(4)] == [True, False, False, True]


def test_the_next_start_finds_what_is_there_and_clears_what_was_abandoned(tmp_path: Path) -> None:
    files = BlockFiles(tmp_path, None)
    files.write(name(1, length=5, parent=7), content(1))
    files.write(name(2, length=3, parent=7), content(2))
    (tmp_path / "notes.txt").write_text("not ours")
    for partial, age_s in (("old", 7200), ("new", 60)):
        path = tmp_path / f"{block_files.TEMPORARY}{partial}"
        path.write_bytes(b"half")
        os.utime(path, (time.time() - age_s,) * 2)
    files = BlockFiles(tmp_path, None)
    assert files.lengths(f"{7:040x}") == [5, 3]
    assert files.lengths(f"{8:040x}") == []
    assert files.read(name(2, length=3, parent=7)) == content(2)
    others = {path.name for path in tmp_path.iterdir() if not block_files.NAME.fullmatch(path.name)}
    assert others == {"notes.txt", f"{block_files.TEMPORARY}new"}


def test_what_another_server_deleted_is_a_silent_miss(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    mine, other = BlockFiles(tmp_path, None), BlockFiles(tmp_path, 2 * SIZE)
    mine.write(name(0), content(0))
    other.write(name(1), content(1))
    BlockFiles(tmp_path, 0)
    assert mine.read(name(0)) is None
    assert not mine.has(name(0))
    assert caplog.records == []
