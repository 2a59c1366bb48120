"""Sliding windows: what a hit needs, what is freed when, what comes back."""

import numpy as np
import pytest

from corymb.cache.cache import Cache
from corymb.cache.config import CacheConfig
from corymb.cache.key import Key
from corymb.cache.lease import Lease
from corymb.cache.node import Node

WINDOW = 6  # a query reads five tokens before its own


def int32(*values: int) -> np.ndarray:
    return np.array(values, np.int32)


def tokens(count: int, start: int = 0) -> np.ndarray:
    return np.arange(start, start + count, dtype=np.int32)


def make(page_size: int = 1, num_sliding: int = 400, window: int = WINDOW) -> Cache:
    return Cache(
        CacheConfig(
            num_full_tokens=800,
            num_sliding_tokens=num_sliding,
            sliding_window=window,
            page_size=page_size,
            num_rows=5,
            context_length=256,
        )
    )


def start(cache: Cache, token_ids: np.ndarray) -> Lease:
    """Opens a request and computes its prompt."""
    lease = cache.open(Key(token_ids), len(token_ids) - 1)
    assert cache.grow(int32(lease.row), int32(len(token_ids) - lease.num_cached)) is not None
    cache.check()
    return lease


def slide(cache: Cache, lease: Lease, computed: int) -> None:
    cache.slide(int32(lease.row), int32(computed))
    cache.check()


def live(cache: Cache) -> dict[tuple[int, int], bool]:
    """Returns which spans of the only branch have sliding state."""
    spans, node = {}, cache.tree.root
    while node.children:
        (node,) = node.children.values()
        spans[node.start, node.stop] = node.values[1] is not None
    return spans


def drop_sliding(cache: Cache, count: int) -> None:
    cache.execute(cache.tree.evict({"sliding": count}))
    cache.check()


def path(cache: Cache, lease: Lease) -> list[Node]:
    nodes, node = [], cache.tree.nodes[lease.receipt.node_id]
    while node.parent is not None:
        nodes.append(node)
        node = node.parent
    return nodes[::-1]


def test_a_row_keeps_one_page_more_than_its_window() -> None:
    for page_size in (1, 4):
        cache = make(page_size)
        lease = start(cache, tokens(40))
        slide(cache, lease, 40)
        kept = np.flatnonzero(cache.sliding_pool.twins[cache.table[lease.row, :40:page_size] // page_size]) * page_size
        assert kept[0] == (40 - 5 - page_size) // page_size * page_size


def test_sliding_twice_frees_once() -> None:
    cache = make()
    lease = start(cache, tokens(40))
    slide(cache, lease, 40)
    before = cache.usage()["sliding"]
    slide(cache, lease, 40)
    slide(cache, lease, 20)
    assert cache.usage()["sliding"] == before


def test_several_rows_slide_at_once() -> None:
    cache = make()
    leases = [start(cache, tokens(n, 100 * n)) for n in (3, 30, 50)]
    cache.slide(int32(*(lease.row for lease in leases)), int32(3, 30, 50))
    cache.check()
    assert cache.usage()["sliding"].leased == 3 + 6 + 6


@pytest.mark.parametrize("page_size", [1, 4, 16])
@pytest.mark.parametrize("late", [0, 1])
def test_a_finished_request_ends_in_a_whole_window(page_size: int, late: int) -> None:
    for length in range(40, 60):
        cache = make(page_size)
        lease = start(cache, tokens(30))
        for computed in range(31, length + late + 1):
            assert cache.grow(int32(lease.row), int32(1)) is not None
            cache.slide(int32(lease.row), int32(computed))
        cache.close(lease, tokens(length))
        cache.check()
        assert cache.match(Key(tokens(70)), 70) == length // page_size * page_size


def test_a_prompt_sent_again_hits_up_to_its_last_token_even_if_only_its_last_leaf_is_left() -> None:
    for page_size in (1, 4):
        cache = make(page_size)
        lease = start(cache, tokens(40))
        cache.commit(lease, tokens(40))
        drop_sliding(cache, 1000)
        assert list(live(cache).values()) == [False, True]
        assert cache.match(Key(tokens(40)), 39) == 39 // page_size * page_size


def test_a_hit_may_only_end_where_a_window_is_alive() -> None:
    cache = make()
    cache.close(start(cache, tokens(40)), tokens(40))
    drop_sliding(cache, 1)
    assert live(cache) == {(0, 34): False, (34, 40): True}
    hits = [cache.match(Key(tokens(40)), limit) for limit in range(41)]
    assert hits == [0] * 39 + [39, 40]
    match = cache.tree.match(Key(tokens(40)), 20)
    assert (match.num_tokens, match.num_full) == (0, 20)


def test_from_the_root_on_nothing_is_missing() -> None:
    cache = make()
    cache.close(start(cache, tokens(40)), tokens(40))
    assert [cache.match(Key(tokens(40)), limit) for limit in range(4)] == [0, 1, 2, 3]


def test_dead_part_of_a_new_branch_is_a_tombstone_and_the_last_window_a_leaf_of_its_own() -> None:
    cache = make()
    lease = start(cache, tokens(60))
    slide(cache, lease, 40)
    cache.close(lease, tokens(60))
    cache.check()
    assert live(cache) == {(0, 34): False, (34, 54): True, (54, 60): True}


def test_a_lock_pins_a_window_not_the_whole_path() -> None:
    cache = make()
    lease = start(cache, tokens(60))
    cache.commit(lease, tokens(60))
    assert [(n.start, n.locks) for n in path(cache, lease)] == [(0, [1, 0]), (54, [1, 1])]
    assert cache.sliding.locked == 6
    drop_sliding(cache, 1000)
    assert live(cache) == {(0, 54): False, (54, 60): True}


def test_a_lock_counts_tombstones_and_survives_splits() -> None:
    cache = make()
    lease = start(cache, tokens(60))
    cache.commit(lease, tokens(60))
    cache.tree.match(Key(tokens(60)), 57)
    cache.check()
    assert [(n.start, n.locks) for n in path(cache, lease)] == [(0, [1, 0]), (54, [1, 1]), (57, [1, 1])]
    cache.close(lease, None)
    cache.check()


def test_a_request_past_its_prefix_lets_go_of_the_window_there() -> None:
    cache = make()
    cache.close(start(cache, tokens(20)), tokens(20))
    lease = start(cache, tokens(40))
    assert lease.num_cached == 20
    slide(cache, lease, 25)
    assert cache.sliding.locked == 6
    slide(cache, lease, 26)
    assert cache.sliding.locked == 0
    assert cache.tree.full.locked == 20
    slide(cache, lease, 40)
    cache.close(lease, tokens(40))
    cache.check()


def test_a_leaf_that_is_still_read_in_full_loses_only_its_sliding_state() -> None:
    cache = make()
    cache.close(start(cache, tokens(20)), tokens(20))
    lease = start(cache, tokens(40))
    slide(cache, lease, 40)
    drop_sliding(cache, 1000)
    assert live(cache) == {(0, 14): False, (14, 20): False}
    assert cache.tree.full.locked == 20


def test_a_leaf_that_nobody_reads_goes_whole() -> None:
    cache = make()
    cache.close(start(cache, tokens(4)), tokens(4))
    cache.close(start(cache, tokens(4, 100)), tokens(4, 100))
    drop_sliding(cache, 1)
    assert cache.match(Key(tokens(4)), 4) == 0
    assert cache.usage()["full"].evictable == 4


def test_inner_nodes_nearest_the_root_die_first() -> None:
    cache = make()
    lease = start(cache, tokens(20))
    cache.commit(lease, tokens(20))
    assert cache.grow(int32(lease.row), int32(20)) is not None
    cache.close(lease, tokens(40))
    assert list(live(cache)) == [(0, 14), (14, 20), (20, 34), (34, 40)]
    for count in range(1, 4):
        drop_sliding(cache, 1)
        assert list(live(cache).values()) == [False] * count + [True] * (4 - count)


def test_recomputed_twins_fill_a_tombstone_and_the_full_slots_stay() -> None:
    cache = make()
    cache.close(start(cache, tokens(40)), tokens(40))
    drop_sliding(cache, 1)
    kept = cache.tree.slots(max(cache.tree.nodes), 0)
    lease = start(cache, tokens(30))
    assert lease.num_cached == 0
    own = cache.sliding_pool.twins[cache.table[lease.row, :30]].copy()
    cache.take_sliding_writes()
    cache.commit(lease, tokens(30))
    cache.check()
    assert np.array_equal(cache.table[lease.row, :30], kept[:30])
    assert np.array_equal(cache.sliding_pool.twins[kept[:30]], own)
    writes = cache.take_sliding_writes()
    device = dict(zip(writes.full.tolist(), writes.sliding.tolist(), strict=True))
    assert [device[slot] for slot in kept[:30].tolist()] == own.tolist()
    assert live(cache) == {(0, 30): True, (30, 34): False, (34, 40): True}
    assert cache.match(Key(tokens(30)), 30) == 30


def test_a_tombstone_that_another_request_reads_is_filled_too() -> None:
    cache = make()
    cache.close(start(cache, tokens(20)), tokens(20))
    reader = start(cache, tokens(60))
    slide(cache, reader, 60)
    drop_sliding(cache, 1000)
    kept = cache.table[reader.row, :20].copy()
    lease = start(cache, tokens(20))
    assert lease.num_cached == 0
    cache.close(lease, tokens(20))
    cache.check()
    assert np.array_equal(cache.table[reader.row, :20], kept)
    assert cache.match(Key(tokens(20)), 20) == 20
    cache.close(reader, tokens(60))
    cache.check()


def test_a_tombstone_is_filled_only_from_where_the_newcomer_still_has_twins() -> None:
    cache = make()
    cache.close(start(cache, tokens(40)), tokens(40))
    drop_sliding(cache, 1)
    lease = start(cache, tokens(30))
    slide(cache, lease, 26)
    cache.close(lease, tokens(30))
    cache.check()
    assert live(cache) == {(0, 20): False, (20, 30): True, (30, 34): False, (34, 40): True}


def test_without_twins_left_nothing_is_filled() -> None:
    cache = make()
    cache.close(start(cache, tokens(100)), tokens(100))
    drop_sliding(cache, 1)
    lease = start(cache, tokens(60))
    slide(cache, lease, 60)
    cache.close(lease, tokens(30))
    cache.check()
    assert live(cache) == {(0, 30): False, (30, 94): False, (94, 100): True}


def test_duplicate_twins_are_freed() -> None:
    cache = make()
    first, second = start(cache, tokens(20)), start(cache, tokens(20))
    cache.close(first, tokens(20))
    cache.close(second, tokens(20))
    cache.check()
    usage = cache.usage()["sliding"]
    assert (usage.evictable, usage.leased) == (20, 0)


def test_sliding_pressure_takes_the_least_recently_used_window() -> None:
    cache = make(num_sliding=33)
    cache.close(start(cache, tokens(5)), tokens(5))
    cache.close(start(cache, tokens(5, 100)), tokens(5, 100))
    cache.close(start(cache, tokens(6)), tokens(6))  # uses the first again
    lease = cache.open(Key(tokens(25, 200)), 24)
    assert cache.grow(int32(lease.row), int32(24)) is not None
    cache.check()
    assert cache.match(Key(tokens(5)), 5) == 5
    assert cache.match(Key(tokens(5, 100)), 5) == 0


@pytest.mark.parametrize("page_size", [1, 4])
def test_a_device_that_follows_the_writes_has_the_same_map(page_size: int) -> None:
    cache, device = make(page_size, num_sliding=96), np.zeros(800, np.int32)
    random = np.random.default_rng(3)
    for _ in range(60):
        prompt = random.integers(0, 2, 40, np.int32)
        lease = start(cache, prompt)
        cache.slide(int32(lease.row), int32(random.integers(20, 40)))
        cache.close(lease, prompt[: random.integers(1, 40)])
        writes = cache.take_sliding_writes()
        device[writes.full] = writes.sliding
        twins = cache.sliding_pool.twins[:, None]
        expected = np.where(twins > 0, twins * page_size + np.arange(page_size), 0).ravel()
        assert np.array_equal(device, expected)
    writes = cache.take_sliding_writes()
    assert len(writes.full) == len(writes.sliding) == 0
