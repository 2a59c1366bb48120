"""What comes back from files is what was there, to other caches too; what must not be found is not."""

import shutil
import tempfile
from concurrent.futures import wait
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from naive_cache import Request
from naive_device import Device
from test_host import ALL_KINDS, KINDS, POLICIES, Desk, config_of, int32

from corymb.cache import storage as storage_module
from corymb.cache.block_files import BlockFiles
from corymb.cache.cache import Cache
from corymb.cache.config import CacheConfig
from corymb.cache.fetch import Fetch
from corymb.cache.key import Key
from corymb.cache.storage import Storage
from corymb.cache.writes import TableWrites

BLOCK = 2  # pages


class StoringDesk(Desk):
    """A cache with files, and a device. Results are read a step late, as the loop does; threads are waited for."""

    def __init__(
        self, config: CacheConfig, folder: Path, fingerprint: bytes = b"this", size: int | None = None
    ) -> None:
        self.config = config
        self.device = Device(config)
        pools = {name: pool.view(np.uint8).reshape(-1, 8) for name, pool in self.device.host.items() if len(pool)}
        self.storage = Storage(
            BlockFiles(folder, size),
            pools,
            fingerprint,
            page_size=config.page_size,
            block_tokens=BLOCK * config.page_size,
        )
        self.cache = Cache(config, self.storage)
        self.open: list[Request] = []
        self.num_late = self.num_arrived = 0
        self.num_read: int | None = None  # blocks that are read before a request's turn; None: all

    def begin(self, tokens: list[int], salt: str | None = None) -> Request | None:
        key, limit = Key(int32(tokens), cache_salt=salt), len(tokens) - 1
        fetch = self.cache.find_stored(key, limit)
        if fetch:
            self.read(fetch)
        lease = self.cache.open(key, limit, fetch=fetch)
        if fetch:
            self.cache.release(fetch)
        self.cache.check()
        if lease is None:
            return None
        hit = lease.num_cached
        request = Request(lease, (None, salt), list(tokens), 0, hit, hit, hit, None)
        self.open.append(request)
        return request

    def read(self, fetch: Fetch) -> None:
        self.cache.read(fetch)
        assert fetch.reading is not None
        fetch.reading.result()
        assert fetch.is_done
        if self.num_read is not None:
            del fetch.parts[self.num_read :]

    def step(self, request: Request, width: int) -> bool:
        done = super().step(request, width)
        self.num_late += done
        if self.num_late == 2:
            self.arrive()
        return done

    def arrive(self) -> None:
        """The result of the oldest step."""
        self.num_late -= 1
        self.num_arrived += 1
        self.device.do(self.num_arrived)
        self.cache.copied(self.num_arrived)
        self.finish()

    def idle(self) -> None:
        """What the loop does while nothing is on its way."""
        while self.num_late:
            self.arrive()
        lot = self.cache.take_late_copies()
        if lot:
            self.device.take(lot)
            self.num_arrived = lot.number
            self.device.do(lot.number)
            self.cache.copied(lot.number)
        self.finish()

    def finish(self) -> None:
        wait([future for _, future in self.storage._writes])
        self.cache.check()

    def forget_all(self) -> None:
        """Leaves the files alone."""
        self.idle()
        self.forget()
        self.idle()  # what write_back stored
        host = self.cache.host
        host.tier.execute(host.tier.tree.evict({"full": 1 << 30}))
        self.cache.check()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "files"


@KINDS
@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("page_size", [1, 4])
@pytest.mark.parametrize("num_pages", [7, 8])
def test_another_cache_finds_what_the_first_one_wrote(kinds, policy, page_size, num_pages, folder):
    desk = StoringDesk(config_of(kinds, page_size, policy), folder)
    tokens = list(range(1, num_pages * page_size + 1))
    desk.whole(tokens)
    desk.whole(tokens)  # for the selective policy: used twice
    desk.forget_all()
    other = StoringDesk(config_of(kinds, page_size, policy), folder)
    assert other.whole([*tokens, 0]) == len(tokens)
    assert other.cache.host.moved.restored["full"] == len(tokens)
    assert desk.whole([*tokens, 0]) == len(tokens), "the first one too, which has nothing else left"


@KINDS
def test_what_is_not_wholly_read_is_used_as_far_as_it_can_be(kinds, folder):
    desk = StoringDesk(config_of(kinds, 1, "write_through"), folder)
    tokens = list(range(1, 9))
    desk.whole(tokens)
    desk.forget_all()
    for num_read, found in ((0, 0), (1, 2), (3, 6)):
        desk.num_read = num_read
        request = desk.begin([*tokens, 0])
        # A window or a state is of use only with all that leads there.
        assert request.computed == (0 if {"sliding", "recurrent"} & {*kinds} else found)
        desk.end(request, keep=False)
        desk.idle()
        desk.forget_all()


def test_a_prompt_that_parts_finds_the_blocks_that_it_shares(folder):
    desk = StoringDesk(config_of((), 1, "write_through"), folder)
    desk.whole([1, 2, 3, 4, 5, 6, 7])
    desk.forget_all()
    assert desk.whole([1, 2, 3, 4, 5, 9, 9]) == 4
    desk.forget_all()
    assert desk.whole([1, 2, 3, 4, 5, 6, 7, 8]) == 7
    assert desk.whole([9] * 7) == 0


@pytest.mark.parametrize("kinds", [("sliding",), ("recurrent",)])
def test_where_no_window_or_state_is_there_is_nothing_to_read(kinds, folder):
    desk = StoringDesk(config_of(kinds, 1, "write_through"), folder)
    desk.whole(list(range(1, 10)), chunk=9)
    desk.forget_all()
    assert desk.cache.find_stored(Key(int32([1, 2, 3, 4, 99, 99])), 5) is None


def test_equal_blocks_of_different_sequences_are_different_files(folder):
    desk = StoringDesk(config_of((), 1, "write_through"), folder)
    for first in (1, 9):
        desk.whole([first, first, 3, 4, 5, 6])
    desk.forget_all()
    assert [desk.whole([first, first, 3, 4, 5, 6, 0]) for first in (1, 9)] == [6, 6]


def test_what_is_to_be_written_stays_on_the_host_until_then(folder):
    desk = StoringDesk(config_of((), 1, "write_through"), folder)
    host = desk.cache.host.tier
    desk.whole([7] * 8, chunk=8)
    desk.idle()
    host.execute(host.tree.evict({"full": 1 << 30}))
    desk.whole(list(range(1, 9)), chunk=8)
    host.execute(host.tree.evict({"full": 1 << 30}))
    desk.whole([7] * 8, chunk=8)  # with the copy of the sequence before it
    desk.idle()  # its own
    desk.forget_all()
    assert desk.whole([*range(1, 9), 0]) == 8


def test_files_are_written_when_the_copy_is_known_to_be_done(folder):
    desk = StoringDesk(config_of((), 1, "write_through"), folder)
    desk.whole(list(range(1, 9)))
    assert desk.num_late == 1
    step = int32([]), TableWrites.none(), None
    lot = desk.cache.take_host_copies(*step)  # a second step is on its way, with the copy
    assert len(lot.copies) == 1
    desk.cache.copied(lot.number - 1)
    assert desk.storage.num_writing == 0
    desk.cache.copied(lot.number)
    assert desk.storage.num_writing == 1


def test_what_led_there_may_go_while_the_rest_is_read(folder):
    desk = StoringDesk(config_of((), 1, "write_through"), folder)
    desk.whole(list(range(1, 9)))
    desk.forget_all()
    desk.whole([1, 2, 3, 4, 9])
    key = Key(int32([*range(1, 9), 0]))
    fetch = desk.cache.find_stored(key, 8)
    assert (fetch.begin, fetch.stop) == (4, 8)
    desk.read(fetch)
    desk.forget_all()
    lease = desk.cache.open(key, 8, fetch=fetch)
    assert lease.num_cached == 0
    desk.cache.close(lease, None)
    desk.cache.check()


def test_what_the_device_has_is_not_read_again(folder):
    desk = StoringDesk(config_of((), 1, "write_through"), folder)
    desk.whole(list(range(1, 11)))
    desk.forget_all()
    assert desk.whole([*range(1, 5), 99]) == 4
    before = desk.storage.files.traffic.num_bytes["loaded"]
    assert desk.whole([*range(1, 11), 0]) == 10
    assert desk.storage.files.traffic.num_bytes["loaded"] - before == 6 * 8


@pytest.mark.parametrize("other", ["salt", "fingerprint"])
def test_others_never_find_it(other, folder):
    config = config_of(("sliding", "recurrent"), 1, "write_through")
    desk = StoringDesk(config, folder)
    desk.whole(list(range(1, 9)))
    desk.forget_all()
    stranger = StoringDesk(config, folder, b"that" if other == "fingerprint" else b"this")
    request = stranger.begin([*range(1, 9), 0], "salt" if other == "salt" else None)
    assert request.computed == 0
    stranger.end(request, keep=False)


def test_a_sequence_is_written_once(folder):
    desk = StoringDesk(config_of(("sliding", "recurrent"), 1, "write_through"), folder)
    for _ in range(3):
        desk.whole(list(range(1, 9)))
        desk.idle()
    written = desk.storage.files.traffic.num_bytes["stored"]
    desk.whole(list(range(1, 9)))
    desk.idle()
    assert desk.storage.files.traffic.num_bytes["stored"] == written > 0


def test_a_missing_block_is_a_shorter_hit(folder):
    desk = StoringDesk(config_of((), 1, "write_through"), folder)
    desk.whole(list(range(1, 9)))
    desk.forget_all()
    sizes = sorted((path.stat().st_mtime_ns, path) for path in folder.iterdir())
    sizes[1][1].unlink()  # the last but one: of a sequence the end is the oldest
    assert desk.whole([*range(1, 9), 0]) == 4


def test_the_end_of_a_sequence_makes_room_first(folder):
    desk = StoringDesk(config_of((), 1, "write_through"), folder, size=3 * (2 * 8 + 16))
    desk.whole(list(range(1, 9)))
    desk.forget_all()
    assert desk.whole([*range(1, 9), 0]) == 6


def test_flushing_leaves_the_files_and_waits_for_nothing_else(folder):
    desk = StoringDesk(config_of(("sliding", "recurrent"), 1, "write_through"), folder)
    desk.whole(list(range(1, 9)))
    desk.idle()
    desk.whole([7] * 8)  # decided, not written
    assert desk.cache.flush()
    desk.cache.check()
    while desk.num_late:
        desk.arrive()
    assert desk.cache.host.tier.tree.num_nodes == 0
    assert desk.whole([*range(1, 9), 0]) == 8
    assert desk.whole([7] * 9) == 0


def test_too_many_sequences_to_write_are_let_go(folder, monkeypatch):
    monkeypatch.setattr(storage_module, "MOST_WRITES", 0)
    desk = StoringDesk(config_of((), 1, "write_through"), folder)
    desk.whole(list(range(1, 9)))
    desk.idle()
    assert desk.storage.usage().failures == {"stored": 1, "loaded": 0}
    assert desk.cache.host.locks() == set()


def test_only_so_many_are_read_at_once_and_each_that_leaves_makes_room(folder, monkeypatch):
    monkeypatch.setattr(storage_module, "MOST_FETCHES", 1)
    desk = StoringDesk(config_of((), 1, "write_through"), folder)
    desk.whole(list(range(1, 9)))
    desk.forget_all()
    key = Key(int32([*range(1, 9), 0]))
    first, second = desk.cache.find_stored(key, 8), desk.cache.find_stored(key, 8)
    assert [desk.storage.start(each) for each in (first, first, second)] == [True, True, False]
    desk.cache.release(first)
    desk.cache.release(first)
    assert desk.storage.start(second)


acts = st.tuples(
    st.sampled_from(["begin", "begin", "step", "step", "step", "commit", "end", "end", "drop", "full", "auxiliary"])
    | st.sampled_from(["idle", "host", "files", "restart", "read"]),
    st.integers(0, 1 << 16),
    st.integers(1, 20),
)


@settings(suppress_health_check=HealthCheck, max_examples=60)
@given(
    kinds=st.sampled_from(ALL_KINDS),
    page_size=st.sampled_from([1, 4]),
    policy=st.sampled_from(POLICIES),
    sizes=st.tuples(st.integers(6, 24), st.integers(4, 30)),
    history=st.lists(acts, min_size=10, max_size=60),
)
def test_random_requests_read_back_what_they_wrote(kinds, page_size, policy, sizes, history):
    folder = Path(tempfile.mkdtemp())
    config = config_of(kinds, page_size, policy, pages=sizes[0], host=sizes[1])
    desk = StoringDesk(config, folder)
    texts = [[1] * page_size]
    for act, pick, size in history:
        request = desk.open[pick % len(desk.open)] if desk.open else None
        if act == "begin":
            base = texts[pick % len(texts)]
            tokens = base[: pick // 7 % (len(base) + 1)] + [pick % 2 + 1] * size * page_size
            desk.begin(tokens[: desk.config.context_length])
        elif act in {"full", "auxiliary"}:
            desk.forget("full" if act == "full" or not {*kinds} - {"index"} else kinds[pick % len(kinds)])
        elif act == "idle":
            desk.idle()
        elif act == "host":
            tier = desk.cache.host.tier
            tier.execute(tier.tree.evict({"full": size * page_size}))
        elif act == "files":
            there = sorted(folder.iterdir())
            [path.unlink() for path in there[pick % (len(there) + 1) :][:2]]
        elif act == "read":
            desk.num_read = None if pick % 2 else size % 4
        elif act == "restart":
            [desk.end(each, keep=size % 2 == 0) for each in [*desk.open]]
            desk.idle()
            desk = StoringDesk(config, folder)
        elif request is not None and act == "step":
            desk.step(request, size) if request.computed < len(request.tokens) else None
        elif request is not None and act == "commit" and request.computed > request.lease.num_cached:
            desk.cache.commit(request.lease, int32(request.tokens[: request.computed]))
            desk.cache.check()
        elif request is not None and act in {"end", "drop"}:
            texts.append(request.tokens[: request.computed] or [1])
            desk.end(request, keep=act == "end")
    desk.finish()
    shutil.rmtree(folder)
