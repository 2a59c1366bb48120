"""Recurrent states: where prompts are cut for them, who gets one, and who finds one."""

import pytest

from corymb.scheduler.admission import Ask, Budget, Free, Stop
from corymb.scheduler.cuts import Cuts, stop_at
from corymb.scheduler.messages import Abort

from .bench import Bench, generate

STATES = {"num_states": 17, "state_interval": 16}
LONG = b"the same long beginning of many prompts, longer than the threshold. "


def plenty(states=100):
    return Free(100_000, 0, states)


# ── policies ──


@pytest.mark.parametrize(
    ("start", "stop", "expected"),
    [(0, 100, 96), (0, 32, 32), (64, 100, 96), (64, 70, 68), (64, 67, 64), (96, 200, 192), (0, 31, 24)],
)
def test_a_cut_ends_where_a_snapshot_is_due_or_on_the_grid_or_a_page(start, stop, expected):
    assert Cuts(page=4, grid=8, interval=32).floor(start, stop) == expected


def test_a_piece_does_not_run_over_a_missing_state():
    assert [stop_at(branch, 10, 50) for branch in (0, 10, 11, 49, 50, 60)] == [50, 50, 11, 49, 50, 50]


def test_a_prompt_is_cut_where_a_state_is_missing_though_all_of_it_fits():
    budget = Budget(cuts=Cuts(1, 1, 16), chunk=64, prefill=1000)
    assert budget.admit(Ask(8, 40, 5, branch=20), plenty(), alone=False) == 12
    assert budget.admit(Ask(0, 40, 5, branch=20), plenty(), alone=False) is Stop.COMPUTE, "one is cut a step"
    assert budget.admit(Ask(20, 10, 5, branch=0), plenty(), alone=False) == 10


def test_without_chunks_a_prompt_is_still_cut_for_a_missing_state():
    budget = Budget(cuts=Cuts(1, 1, 16), chunk=None, prefill=1000)
    assert budget.admit(Ask(0, 400, 5, branch=100), plenty(), alone=False) == 100


def test_everybody_who_is_admitted_needs_a_state():
    budget = Budget(cuts=Cuts(1, 1, 16), chunk=64, prefill=1000)
    budget.reserve(full=0, states=1)
    verdicts = [budget.admit(Ask(0, 4, 5), plenty(states=3), alone=False) for _ in range(3)]
    assert verdicts == [4, 4, Stop.MEMORY]


# ── the scheduler ──


def test_no_more_run_than_there_are_states():
    bench = Bench(cache={"num_states": 4, "state_interval": 16})
    bench.send(*(generate(f"r{i}", bytes([65 + i]) * 9, max_new=30, ignore_eos=True) for i in range(7)))
    bench.step(8)
    assert bench.scheduler.stats().num_running == 3
    bench.finish()
    for rid in bench.sent:
        bench.check_exact(rid)
    assert bench.scheduler.stats().num_retractions == 0
    bench.check_empty()


@pytest.mark.parametrize("depth", [0, 1])
def test_two_states_serve_everybody_one_after_another(depth):
    """One that it starts from and one that it works in: with the first pinned, the second must still be found."""
    bench = Bench(cache={"num_states": 3, "state_interval": 4}, overlap_depth=depth, chunked_prefill_size=8)
    for i in range(6):
        bench.send(generate(f"r{i}", LONG[: 20 + 5 * i], max_new=9))
    bench.finish()
    for rid in bench.sent:
        bench.check_exact(rid)
    bench.check_empty()


def test_a_common_beginning_gets_a_state_from_the_second_prompt_on():
    bench = Bench(cache=STATES)
    for i in range(3):
        bench.send(generate(f"r{i}", LONG + bytes([65 + i]) * 5))
        bench.finish()
    assert [bench.of(f"r{i}")[0].num_cached_tokens for i in range(3)] == [0, 0, len(LONG)]


@pytest.mark.parametrize("chunk", [2048, 16])
def test_copies_of_one_prompt_are_computed_once(chunk):
    """The first is cut where the others go on, so that it leaves them a state."""
    bench = Bench(cache=STATES, chunked_prefill_size=chunk)
    bench.send(*(generate(f"r{i}", LONG) for i in range(9)))
    bench.finish()
    first, *others = sorted(bench.of(rid)[0].num_cached_tokens for rid in bench.sent)
    assert first == 0
    # Less than the threshold is not waited for.
    assert others == [len(LONG) - 1] * 8 if chunk > len(LONG) else min(others) >= 64
    for rid in bench.sent:
        bench.check_exact(rid)


def test_a_beginning_shorter_than_the_grid_is_not_waited_for():
    """No state could end inside it, so waiting would never end in a hit: one prompt a step would be served."""
    bench = Bench(cache={"num_states": 33, "state_interval": 64, "state_grid": 64})
    bench.send(generate("first", LONG[:50] + b"zzz"))
    bench.finish()
    bench.send(*(generate(f"r{i}", LONG[:50] + bytes([65 + i]) * 9, max_new=30, ignore_eos=True) for i in range(8)))
    bench.step(2)
    assert bench.scheduler.stats().num_running == 8


def test_a_turn_goes_on_from_the_end_of_the_one_before():
    bench = Bench(cache=STATES)
    bench.send(generate("first", LONG, max_new=20, ignore_eos=True))
    bench.finish()
    bench.send(generate("second", LONG + bytes(bench.tokens("first")) + b"and then", max_new=5))
    bench.finish()
    # The last token of an answer that ended for its length was never computed.
    assert bench.of("second")[0].num_cached_tokens == len(LONG) + 19
    bench.check_exact("second")


def test_a_prompt_that_was_given_up_halfway_is_found_up_to_its_last_chunk():
    bench = Bench(cache=STATES, chunked_prefill_size=20)
    bench.send(generate("first", LONG * 3, max_new=5))
    bench.step(4)
    bench.send(Abort("first"))
    bench.finish()
    bench.send(generate("second", LONG * 2, max_new=5))
    bench.finish()
    cached = bench.of("second")[0].num_cached_tokens
    assert cached >= 48
    assert cached % 16 == 0
    bench.check_exact("second")


def test_a_decoding_request_leaves_snapshots_where_pages_cannot_end_with_it():
    bench = Bench(cache={"num_states": 17, "state_interval": 16, "page_size": 16})
    bench.send(generate("first", LONG[:30], max_new=41, ignore_eos=True))
    bench.finish()
    bench.send(generate("second", LONG[:30] + bytes(bench.tokens("first")), max_new=5))
    bench.finish()
    assert bench.of("second")[0].num_cached_tokens == 64
    bench.check_exact("second")
