"""A request's life in the cache, by page size, with and without a sliding pool."""

import numpy as np
import pytest

from corymb.cache.cache import Cache
from corymb.cache.config import CacheConfig
from corymb.cache.key import Key
from corymb.cache.lease import Lease
from corymb.cache.usage import UNBOUNDED


def int32(*values: int) -> np.ndarray:
    return np.array(values, np.int32)


def tokens(count: int, start: int = 0) -> np.ndarray:
    return np.arange(start, start + count, dtype=np.int32)


def make(page_size: int = 1, *, num_tokens: int = 160, window: int = 0, num_sliding: int = 160, **kwargs) -> Cache:
    return Cache(
        CacheConfig(
            num_full_tokens=num_tokens,
            num_sliding_tokens=num_sliding if window else 0,
            sliding_window=window,
            page_size=page_size,
            **{"num_rows": 5, "context_length": 128} | kwargs,
        )
    )


def grow(cache: Cache, lease: Lease, width: int) -> np.ndarray:
    slots = cache.grow(int32(lease.row), int32(width))
    assert slots is not None
    cache.check()
    return slots


def run(cache: Cache, token_ids: np.ndarray, *, salt: str | None = None, **kwargs) -> Lease:
    """Opens, computes and closes a whole sequence."""
    lease = cache.open(Key(token_ids, cache_salt=salt), len(token_ids) - 1, **kwargs)
    assert lease is not None
    grow(cache, lease, len(token_ids) - lease.num_cached)
    cache.close(lease, token_ids)
    cache.check()
    return lease


@pytest.fixture(params=[1, 4, 16])
def page_size(request: pytest.FixtureRequest) -> int:
    return request.param


@pytest.fixture(params=[0, 6], ids=["full", "sliding"])
def window(request: pytest.FixtureRequest) -> int:
    return request.param


def test_a_sequence_that_grows_by_a_page_at_a_time_owns_each_page_once(page_size: int, window: int) -> None:
    """Each turn ends a node of one page: the shared part is then as short as it gets."""
    cache = make(page_size, window=window)
    for num_pages in range(1, 6):
        lease = run(cache, tokens(num_pages * page_size))
        assert lease.num_cached == (num_pages - 1) * page_size
    assert cache.usage()["full"].evictable == 5 * page_size


def test_second_request_finds_what_the_first_left(page_size: int, window: int) -> None:
    cache = make(page_size, window=window)
    prompt = tokens(40)
    assert run(cache, prompt).num_cached == 0
    expected = 39 - 39 % page_size
    assert cache.match(Key(prompt), 39) == expected
    lease = cache.open(Key(prompt), 39)
    assert lease is not None
    assert lease.num_cached == lease.num_reserved == expected
    cache.check()


def test_hit_is_capped_by_the_limit_and_page_aligned(page_size: int) -> None:
    cache = make(page_size)
    run(cache, tokens(40))
    for limit in range(41):
        assert cache.match(Key(tokens(40)), limit) == min(limit, 40) // page_size * page_size


def test_close_with_none_keeps_nothing_of_its_own(page_size: int, window: int) -> None:
    cache = make(page_size, window=window)
    before = cache.available()
    lease = cache.open(Key(tokens(40)), 39)
    assert lease is not None
    grow(cache, lease, 40)
    cache.close(lease, None)
    cache.check()
    assert cache.available() == before
    assert cache.match(Key(tokens(40)), 39) == 0


def test_second_close_is_refused() -> None:
    cache = make()
    lease = run(cache, tokens(3))
    with pytest.raises(ValueError, match="closed already"):
        cache.close(lease, None)


def test_without_a_sliding_pool_its_room_is_unbounded() -> None:
    cache = make()
    assert cache.available().sliding == UNBOUNDED
    assert cache.take_sliding_writes() is None


def test_rows_run_out_and_come_back() -> None:
    cache = make(num_rows=3)
    leases = [cache.open(Key(tokens(4)), 3) for _ in range(3)]
    assert [lease.row if lease else None for lease in leases] == [1, 2, None]
    assert cache.num_free_rows == 0
    cache.close(leases[0], None)
    assert cache.num_free_rows == 1
    assert cache.open(Key(tokens(4)), 3).row == 1


def test_grow_takes_all_or_nothing(page_size: int, window: int) -> None:
    cache = make(page_size, window=window)
    first, second = cache.open(Key(tokens(4)), 0), cache.open(Key(tokens(4)), 0)
    grow(cache, first, 100)
    before = cache.usage(), cache.take_table_writes(), first.num_reserved, second.num_reserved
    assert cache.grow(int32(first.row, second.row), int32(20, 100)) is None
    cache.check()
    assert (cache.usage(), before[2], before[3]) == (before[0], first.num_reserved, second.num_reserved)


def test_a_sliding_pool_too_small_refuses_too() -> None:
    cache = make(window=6, num_sliding=20)
    lease = cache.open(Key(tokens(4)), 0)
    assert cache.grow(int32(lease.row), int32(20)) is None
    assert cache.grow(int32(lease.row), int32(19)) is not None
    cache.check()


def test_grow_fills_the_last_page_first() -> None:
    cache = make(4)
    first, second = cache.open(Key(tokens(4)), 0), cache.open(Key(tokens(4)), 0)
    rows = int32(first.row, second.row)
    assert cache.grow(rows, int32(3, 5)).tolist() == [4, 5, 6, 8, 9, 10, 11, 12]
    assert cache.grow(rows, int32(2, 4)).tolist() == [7, 16, 13, 14, 15, 20]
    assert cache.table[first.row, :5].tolist() == [4, 5, 6, 7, 16]
    assert cache.table[second.row, :9].tolist() == [8, 9, 10, 11, 12, 13, 14, 15, 20]
    cache.check()


def test_growth_evicts_what_nobody_holds(page_size: int, window: int) -> None:
    cache = make(page_size, window=window)
    run(cache, tokens(96))
    lease = cache.open(Key(tokens(4, 1000)), 3)
    grow(cache, lease, 112)
    assert cache.match(Key(tokens(96)), 95) < 64


def test_what_a_lease_found_is_never_evicted(page_size: int, window: int) -> None:
    cache = make(page_size, window=window)
    run(cache, tokens(64))
    lease = cache.open(Key(tokens(64)), 48)
    found = lease.num_cached
    slots = cache.table[lease.row, :found].copy()
    other = cache.open(Key(tokens(4, 1000)), 3)
    while cache.grow(int32(other.row), int32(1)) is not None:
        cache.check()
    assert cache.match(Key(tokens(64)), 48) == found
    assert np.array_equal(cache.tree.slots(lease.receipt.node_id, 0), slots)


def test_a_table_that_is_too_narrow_is_noticed_before_anything_changes() -> None:
    cache = make(context_length=8)
    lease = cache.open(Key(tokens(4)), 0)
    with pytest.raises(AssertionError, match="outgrows"):
        cache.grow(int32(lease.row), int32(9))
    cache.check()


def test_open_reports_the_prefix_and_grow_reports_nothing() -> None:
    cache = make()
    run(cache, tokens(10))
    cache.take_table_writes()
    lease = cache.open(Key(tokens(12)), 11)
    grow(cache, lease, 2)
    writes = cache.take_table_writes()
    assert writes.rows.tolist() == [lease.row] * 10
    assert writes.positions.tolist() == list(range(10))
    assert writes.slots.tolist() == cache.table[lease.row, :10].tolist()
    assert len(cache.take_table_writes().rows) == 0


def test_commit_goes_over_to_the_slots_of_who_was_faster(page_size: int, window: int) -> None:
    cache = make(page_size, window=window)
    prompt = tokens(32)
    fast, slow = cache.open(Key(prompt), 31), cache.open(Key(prompt), 31)
    grow(cache, fast, 32)
    grow(cache, slow, 32)
    cache.commit(fast, prompt)
    cache.take_table_writes()
    own = cache.table[slow.row, :32].copy()
    free = cache.usage()["full"].free
    cache.commit(slow, prompt)
    cache.check()
    writes = cache.take_table_writes()
    assert np.array_equal(cache.table[slow.row, :32], cache.table[fast.row, :32])
    assert np.array_equal(writes.slots, cache.table[fast.row, :32])
    assert not np.isin(own, cache.table[slow.row, :32]).any()
    assert cache.usage()["full"].free == free + 32


def test_commit_lets_others_hit_a_chunk_of_an_unfinished_prompt(page_size: int, window: int) -> None:
    cache = make(page_size, window=window)
    prompt = tokens(100)
    lease = cache.open(Key(prompt), 99)
    grow(cache, lease, 50)
    cache.commit(lease, prompt[:50])
    cache.check()
    assert cache.match(Key(prompt), 99) == 50 // page_size * page_size
    assert lease.num_cached == 0
    assert lease.num_reserved == 50
    grow(cache, lease, 50)
    cache.close(lease, prompt)
    cache.check()
    assert cache.match(Key(prompt), 100) == 100 // page_size * page_size


def test_a_late_step_leaves_no_slot_behind(page_size: int, window: int) -> None:
    cache = make(page_size, window=window)
    lease = cache.open(Key(tokens(32)), 31)
    grow(cache, lease, 32)
    grow(cache, lease, 1)  # in flight when the request turns out to have ended
    cache.close(lease, tokens(32))
    cache.check()
    assert cache.usage()["full"].leased == 0
    assert cache.match(Key(tokens(40)), 40) == 32


def test_closing_with_less_than_was_found_keeps_the_rest(page_size: int, window: int) -> None:
    cache = make(page_size, window=window)
    run(cache, tokens(32))
    lease = cache.open(Key(tokens(40)), 39)
    grow(cache, lease, 8)
    cache.close(lease, tokens(7))
    cache.check()
    assert cache.match(Key(tokens(40)), 39) == 32


def test_disabled_prefix_cache_never_hits_and_keeps_nothing(window: int) -> None:
    cache = make(window=window, enable_prefix_cache=False)
    prompt = tokens(32)
    for _ in range(2):
        lease = cache.open(Key(prompt), 31)
        assert lease.num_cached == cache.match(Key(prompt), 31) == 0
        grow(cache, lease, 16)
        cache.commit(lease, prompt[:16])
        grow(cache, lease, 16)
        cache.slide(int32(lease.row), int32(32))
        cache.check()
        if window:
            assert cache.usage()["sliding"].leased == window
        cache.close(lease, prompt)
        cache.check()
        assert cache.usage()["full"].free == cache.usage()["full"].total


def test_flush_refuses_while_a_lease_is_open_and_else_drops_everything(window: int) -> None:
    cache = make(window=window)
    run(cache, tokens(32))
    lease = cache.open(Key(tokens(4)), 3)
    assert not cache.flush()
    assert cache.match(Key(tokens(32)), 31) == 31
    cache.close(lease, None)
    assert cache.flush()
    cache.check()
    assert cache.match(Key(tokens(32)), 31) == 0
    assert all(usage.free == usage.total for usage in cache.usage().values())


def test_a_lease_left_by_an_error_is_closed() -> None:
    cache = make()
    lease = cache.open(Key(tokens(4)), 3)
    with pytest.raises(ZeroDivisionError), lease:
        grow(cache, lease, 4 // 0)
    assert lease.closed
    assert lease.num_reserved == 0
    assert cache.num_free_rows == 4
    with cache.open(Key(tokens(4)), 3) as lease:
        cache.close(lease, None)


def test_nothing_can_be_committed_to_a_closed_lease() -> None:
    cache = make()
    lease = run(cache, tokens(4))
    with pytest.raises(ValueError, match="closed already"):
        cache.commit(lease, tokens(4))


def test_priority_of_a_request_guards_what_it_leaves() -> None:
    cache = make(num_tokens=33, eviction="priority")
    run(cache, tokens(16), priority=3)
    run(cache, tokens(16, 100), priority=1)
    run(cache, tokens(8, 200), priority=0)
    assert cache.match(Key(tokens(16)), 16) == 16
    assert cache.match(Key(tokens(16, 100)), 16) == 0


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        ({"page_size": 0}, "page_size is 0"),
        ({"page_size": 16, "num_full_tokens": 100}, "multiple of page_size"),
        ({"page_size": 16, "num_full_tokens": 16}, "two pages are the least"),
        ({"num_sliding_tokens": 32}, "go together"),
        ({"sliding_window": 32}, "go together"),
        ({"num_rows": 1}, "num_rows is 1"),
    ],
)
def test_impossible_sizes_are_refused_with_a_reason(sizes: dict[str, int], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Cache(CacheConfig(**{"num_full_tokens": 64} | sizes))


def test_the_same_calls_give_the_same_slots() -> None:
    tables = []
    for _ in range(2):
        cache, random = make(4, window=6), np.random.default_rng(7)
        for _ in range(40):
            run(cache, random.integers(0, 2, 24, np.int32), salt=random.choice(["a", "b"]))
        tables.append(cache.table.copy())
    assert np.array_equal(*tables)


def test_what_has_left_the_tree_is_forgotten_by_every_order_of_eviction() -> None:
    """Full evictions take nodes that the sliding order still names: those entries must not pile up."""
    cache = make(window=6, num_tokens=60, num_sliding=60)
    assert cache.sliding is not None
    for turn in range(200):
        run(cache, tokens(20, start=100 * turn))
    for component in cache.tree.components:
        assert len(component.victims.nodes()) <= 64 + 2 * len(cache.tree.nodes)


def test_both_halves_of_a_split_own_their_slots() -> None:
    """A half that were a view would keep the other's memory after its eviction."""
    cache = make(window=6)
    run(cache, tokens(40))
    run(cache, np.concatenate([tokens(20), tokens(20, start=100)]))
    values = [value for node in cache.tree.nodes.values() for value in node.values if value is not None]
    assert len(values) > 4
    assert all(value.base is None for value in values)
