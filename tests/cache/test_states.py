"""Recurrent states as requests see them: copied, passed on, put aside, given to the tree."""

import numpy as np
import pytest

from corymb.cache.cache import Cache
from corymb.cache.config import CacheConfig
from corymb.cache.key import Key
from corymb.cache.lease import Lease
from corymb.cache.writes import StateWrites


def int32(*values: int) -> np.ndarray:
    return np.array(values, np.int32)


def make(num_states: int = 9, interval: int = 4, **config) -> Cache:
    sizes = {"num_full_tokens": 256, "num_rows": 9, "context_length": 64} | config
    return Cache(CacheConfig(num_states=num_states, state_interval=interval, **sizes))


def tokens(count: int, first: int = 0) -> np.ndarray:
    return np.arange(first, first + count, dtype=np.int32)


def begin(cache: Cache, token_ids: np.ndarray) -> Lease:
    lease = cache.open(Key(token_ids), len(token_ids) - 1)
    assert lease is not None
    return lease


def step(cache: Cache, lease: Lease, width: int) -> StateWrites:
    stop = lease.num_reserved + width
    assert cache.grow(int32(lease.row), int32(width)) is not None
    writes = cache.take_state_writes(int32(lease.row), int32(stop))
    assert writes is not None
    cache.check()
    return writes


def run(cache: Cache, token_ids: np.ndarray) -> None:
    """One request computes everything in one step and ends."""
    lease = begin(cache, token_ids)
    step(cache, lease, len(token_ids) - lease.num_cached)
    cache.close(lease, token_ids)
    cache.check()


def hit(cache: Cache, token_ids: np.ndarray) -> int:
    return cache.match(Key(token_ids), len(token_ids) - 1)


def test_a_new_sequence_starts_from_a_cleared_state() -> None:
    cache = make()
    writes = step(cache, begin(cache, tokens(5)), 5)
    assert writes.zero.tolist() == writes.slots.tolist()
    assert not len(writes.before_to)


def test_a_hit_copies_the_state_and_leaves_it_in_the_tree() -> None:
    cache = make()
    run(cache, tokens(6))
    leases = [begin(cache, tokens(9)) for _ in range(2)]
    writes = [step(cache, lease, 3) for lease in leases]
    assert [lease.num_cached for lease in leases] == [6, 6]
    assert writes[0].before_from.tolist() == writes[1].before_from.tolist()
    assert len({*writes[0].before_from, *writes[0].slots, *writes[1].slots}) == 3
    assert [w.before_to.tolist() for w in writes] == [w.slots.tolist() for w in writes]


def test_only_the_first_step_starts_from_somewhere_else() -> None:
    cache = make()
    lease = begin(cache, tokens(9))
    first, second = step(cache, lease, 3), step(cache, lease, 2)
    assert first.slots.tolist() == second.slots.tolist()
    assert not len(second.zero) + len(second.before_to)


def test_the_state_that_a_request_will_start_from_stays_until_it_is_copied() -> None:
    cache = make(num_states=3)
    run(cache, tokens(6))
    waiting = begin(cache, tokens(9))
    assert cache.available().states == 1
    other = begin(cache, tokens(5, first=50))
    step(cache, other, 5)
    assert cache.grow(int32(waiting.row), int32(1)) is None
    cache.close(other, None)
    writes = step(cache, waiting, 3)
    assert len(writes.before_from) == 1
    assert cache.available().states == 1, "once copied it may go"


def test_a_request_that_is_not_admitted_has_taken_nothing() -> None:
    cache = make()
    run(cache, tokens(6))
    before = cache.usage()["recurrent"]
    cache.close(begin(cache, tokens(9)), None)
    cache.check()
    assert cache.usage()["recurrent"] == before


def test_the_end_of_a_request_is_found_again_wherever_it_lies() -> None:
    cache = make()
    run(cache, tokens(7))
    assert hit(cache, tokens(20)) == 7


def test_a_late_token_costs_the_last_state_but_not_the_snapshot_before_it() -> None:
    cache = make()
    lease = begin(cache, tokens(7))
    for width in (7, 1, 1):
        step(cache, lease, width)
    cache.close(lease, tokens(8))  # one token more was computed than counts
    cache.check()
    assert hit(cache, tokens(20)) == 8
    lease = begin(cache, tokens(7, first=30))
    for width in (4, 3, 1):
        step(cache, lease, width)
    cache.close(lease, tokens(7, first=30))
    cache.check()
    assert hit(cache, tokens(20, first=30)) == 4


def test_pages_are_found_again_up_to_the_last_snapshot() -> None:
    cache = make(interval=8, page_size=4)
    lease = begin(cache, tokens(7))
    step(cache, lease, 7)
    for _ in range(4):
        step(cache, lease, 1)
    cache.close(lease, tokens(11))
    assert hit(cache, tokens(20)) == 8


def test_where_prompts_part_a_state_is_missing_and_then_kept() -> None:
    cache = make(interval=100)
    run(cache, np.concatenate((tokens(10), tokens(5, first=50))))
    other = np.concatenate((tokens(10), tokens(5, first=60)))
    lease = begin(cache, other)
    assert (lease.num_cached, lease.branch) == (0, 10)
    assert step(cache, lease, 10).after_from.tolist() != []
    cache.commit(lease, other[:10])
    assert hit(cache, np.concatenate((tokens(10), tokens(5, first=70)))) == 10
    again = begin(cache, other)
    assert (again.num_cached, again.branch) == (10, 0)


def test_a_missing_state_is_looked_for_on_the_grid() -> None:
    cache = make(interval=16, state_grid=8)
    run(cache, np.concatenate((tokens(21), tokens(5, first=50))))
    assert begin(cache, np.concatenate((tokens(21), tokens(5, first=60)))).branch == 16
    assert begin(cache, np.concatenate((tokens(7), tokens(5, first=60)))).branch == 0


def test_snapshots_take_two_slots_in_turn() -> None:
    cache = make(interval=2)
    lease = begin(cache, tokens(2))
    taken = [step(cache, lease, 2).after_to.tolist() for _ in range(4)]
    assert len({slot for slots in taken for slot in slots}) == 2
    assert taken[0] == taken[2] != taken[1] == taken[3]


def test_an_ended_request_leaves_its_last_state_and_one_snapshot() -> None:
    cache = make(interval=4)
    lease = begin(cache, tokens(4))
    for width in (4, 4, 4, 2):
        step(cache, lease, width)
    cache.close(lease, tokens(14))
    cache.check()
    assert [hit(cache, np.append(tokens(n), int32(99))) for n in (4, 8, 12, 13, 14)] == [0, 0, 12, 12, 14]
    assert cache.usage()["recurrent"].evictable == 2


def test_a_snapshot_is_left_out_where_there_is_no_room() -> None:
    cache = make(num_states=3, interval=2)
    leases = [begin(cache, tokens(2, first=10 * i)) for i in range(2)]
    assert len(step(cache, leases[0], 2).after_to) == 1
    assert cache.available().states == 1
    assert len(step(cache, leases[1], 2).after_to) == 0


def test_a_new_row_takes_a_snapshot_back_and_no_more_than_it_needs() -> None:
    cache = make(num_states=5, interval=2)
    lease = begin(cache, tokens(2))
    step(cache, lease, 2)
    step(cache, lease, 2)
    step(cache, begin(cache, tokens(3, first=20)), 3)
    step(cache, begin(cache, tokens(3, first=30)), 3)
    assert len(cache.state_pool.kept[lease.row]) == 1
    cache.close(lease, tokens(4))
    assert hit(cache, tokens(9)) == 4


def test_nothing_is_kept_without_a_prefix_cache() -> None:
    cache = make(interval=2, enable_prefix_cache=False)
    lease = begin(cache, tokens(4))
    assert not len(step(cache, lease, 4).after_to)
    cache.close(lease, tokens(4))
    cache.check()
    assert cache.usage()["recurrent"].free == 8


@pytest.mark.parametrize(
    ("config", "sentence"),
    [
        ({"num_states": 2}, "num_states is 2: 3 are the least"),
        ({"interval": 6, "page_size": 4}, "state_interval is 6: make it a multiple of 4"),
        ({"interval": 16, "state_grid": 64}, "state_interval is 16: make it a multiple of 64"),
        ({"state_grid": 0}, "state_grid is 0"),
        ({"max_states_per_path": 0}, "max_states_per_path is 0"),
    ],
)
def test_sizes_that_cannot_work_are_refused(config: dict[str, int], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        make(**config)
