"""Admission budget, ratio, retraction order and preemption as functions on numbers."""

import pytest

from corymb.scheduler.admission import Ask, Budget, Free, Stop, survives
from corymb.scheduler.cuts import Cuts
from corymb.scheduler.finishing import finish_after
from corymb.scheduler.preemption import Occupant, preempt
from corymb.scheduler.ratio import NewTokenRatio
from corymb.scheduler.request import request_from
from corymb.scheduler.retraction import victims

from .bench import EOS, generate

PLENTY = Free(100_000, 1 << 60)


def cuts(page, grid=None, interval=None):
    return Cuts(page, grid or page, interval or grid or page)


def budget(*, page=1, chunk=64, prefill=16384, **more):
    return Budget(cuts=cuts(page), chunk=chunk, prefill=prefill, **more)


def admit(spent, extend, room=0, free=PLENTY, *, start=0, alone=False):
    return spent.admit(Ask(start, extend, room), free, alone=alone)


# ── compute ──


def test_prompts_fill_a_step_and_the_last_is_cut():
    spent = budget()
    assert [admit(spent, 30), admit(spent, 30), admit(spent, 30)] == [30, 30, 4]
    assert admit(spent, 1) is Stop.COMPUTE


def test_a_cut_ends_a_page_of_the_whole_sequence():
    assert admit(budget(page=16, chunk=40), 100, start=16) == 32
    assert admit(budget(page=16, chunk=48), 100, start=32) == 48


def test_one_request_is_cut_a_step():
    spent = budget(page=16, chunk=72)
    assert admit(spent, 100) == 64
    assert admit(spent, 5) is Stop.COMPUTE
    beside = budget()
    beside.continue_chunk(16, left=100, output_room=9)
    assert admit(beside, 100) is Stop.COMPUTE
    assert admit(beside, 20) == 20


def test_what_a_chunk_in_progress_will_still_take_is_set_aside():
    for left, output_room in ((100, 9), (0, 100)):
        spent = budget()
        spent.continue_chunk(16, left=left, output_room=output_room)
        assert admit(spent, 20, free=Free(121, 1000)) is Stop.MEMORY
        assert admit(spent, 20, free=Free(122, 1000)) == 20


def test_a_chunk_that_completes_lets_another_be_cut():
    spent = budget()
    spent.continue_chunk(16, left=0, output_room=9)
    assert admit(spent, 100) == 48


def test_without_chunks_the_first_prompt_may_exceed_the_cap_and_no_later_one():
    spent = budget(chunk=None, prefill=50)
    assert admit(spent, 80) == 80
    assert admit(spent, 1) is Stop.COMPUTE
    spent = budget(chunk=None, prefill=50)
    assert [admit(spent, 20), admit(spent, 20)] == [20, 20]
    assert admit(spent, 20) is Stop.COMPUTE


def test_the_prefill_cap_also_bounds_chunks():
    assert admit(budget(chunk=64, prefill=10), 100) == 10


# ── memory ──


def test_a_request_must_leave_a_token_beyond_its_life_and_a_page():
    assert admit(budget(), 10, 20, Free(31, 0)) is Stop.MEMORY
    assert admit(budget(), 10, 20, Free(32, 0)) == 10


def test_memory_is_judged_for_the_whole_prompt_not_for_the_chunk():
    assert admit(budget(chunk=8), 100, 0, Free(101, 0)) is Stop.MEMORY
    assert admit(budget(chunk=8), 100, 0, Free(102, 0)) == 8


def test_what_runs_keeps_its_share():
    spent = budget()
    spent.reserve(full=50.5, sliding=0)
    assert admit(spent, 10, 20, Free(81, 0)) is Stop.MEMORY
    assert admit(spent, 10, 20, Free(82, 0)) == 10


def test_what_was_admitted_keeps_its_life_and_a_cut_prompt_no_output():
    whole, cut = budget(), budget(chunk=10)
    assert admit(whole, 10, 20) == 10
    assert whole.shortfall(Ask(0, 1, 0), Free(0, 0)) == 1 + 1 + 31 + 1
    assert admit(cut, 20, 20) == 10
    assert cut.shortfall(Ask(0, 1, 0), Free(0, 0)) == 1 + 1 + 11 + 1


def test_who_is_alone_need_not_fit():
    assert admit(budget(), 10, 4000, Free(12, 0), alone=True) == 10


def test_the_sliding_pool_is_asked_for_a_window_and_for_what_a_chunk_takes_beyond():
    window = {"window": 8, "chunk": None}
    assert admit(budget(**window), 20, 50, Free(1000, 20)) is Stop.MEMORY
    assert admit(budget(**window), 20, 50, Free(1000, 21)) == 20
    assert admit(budget(**window), 3, 2, Free(1000, 6)) == 3


def test_a_short_request_does_not_reserve_a_whole_window():
    assert admit(budget(window=512), 1, 3, Free(1000, 5)) == 1


def test_only_what_can_never_fit_is_cut_for_the_sliding_pool():
    assert admit(budget(window=8, chunk=None, most=32), 100) == 32
    assert admit(budget(window=8, chunk=None, most=128), 100) == 100


def test_the_simulation_replaces_the_estimate():
    assert budget().admit(Ask(0, 10, 4000, survives=True), Free(50, 0), alone=False) == 10
    assert budget().admit(Ask(0, 10, 1, survives=False), PLENTY, alone=False) is Stop.MEMORY


def test_requests_that_end_early_make_room_for_those_that_go_on():
    # The first gives its 40 tokens back at step 10, so the second may go on to 60.
    assert survives(30, left=[10, 60], occupied=[40, 5])
    assert not survives(30, left=[10, 90], occupied=[40, 5])
    assert not survives(19, left=[10, 10], occupied=[40, 5])


@pytest.mark.parametrize(
    ("start", "width", "page", "expected"),
    [(0, 64, 1, 32), (16, 64, 16, 32), (0, 17, 16, 16), (0, 16, 16, 0), (0, 1, 1, 0), (32, 5, 16, 0), (0, 3, 1, 1)],
)
def test_a_chunk_that_must_shrink_halves_and_ends_a_page(start, width, page, expected):
    assert cuts(page).narrower(start, width) == expected


# ── ratio ──


def test_the_ratio_falls_to_its_floor_in_600_steps_and_starts_again_when_idle():
    ratio = NewTokenRatio(1.0)
    assert ratio.value == pytest.approx(0.7)
    for _ in range(300):
        ratio.decay()
    assert ratio.value == pytest.approx((0.7 + 0.098) / 2)
    for _ in range(400):
        ratio.decay()
    assert ratio.value == pytest.approx(0.098)
    ratio.reset()
    assert ratio.value == pytest.approx(0.7)


def test_conservativeness_scales_the_ratio_up_to_one():
    assert NewTokenRatio(0.5).start == pytest.approx(0.35)
    assert NewTokenRatio(9.0).start == 1.0


def test_after_a_retraction_survivors_get_room_for_twenty_steps():
    ratio = NewTokenRatio(1.0)
    ratio.raise_after_retraction(num_decoded=100, num_requests=3, max_new=999)
    assert ratio.value == pytest.approx(0.16)
    ratio.raise_after_retraction(num_decoded=100, num_requests=50, max_new=99)
    assert ratio.value == 1.0


# ── retraction and preemption ──


def test_fewest_outputs_go_first_then_longest_prompts_then_latest():
    assert victims([5, 1, 1, 9], [10, 10, 20, 10]) == [2, 1, 0, 3]
    assert victims([1, 1], [10, 10]) == [1, 0]


def test_by_priority_the_least_urgent_go_first():
    assert victims([5, 1, 1], [10, 10, 10], urgency=[0, 7, 0]) == [2, 0, 1]


def occupants(*triples):
    return [Occupant(*triple) for triple in triples]


def test_the_least_urgent_and_newest_give_way_until_enough_is_free():
    running = occupants((0, 1, 50), (0, 2, 50), (5, 3, 50), (20, 4, 50))
    assert preempt(running, urgency=20, threshold=10, tokens=10) == [1]
    assert preempt(running, urgency=20, threshold=10, tokens=120) == [1, 0, 2]


def test_nobody_gives_way_when_all_together_are_not_enough():
    assert preempt(occupants((0, 1, 50), (15, 2, 500)), urgency=20, threshold=10, tokens=51) == []


def test_the_difference_must_exceed_the_threshold():
    assert preempt(occupants((10, 1, 50)), urgency=20, threshold=10, tokens=1) == []
    assert preempt(occupants((9, 1, 50)), urgency=20, threshold=10, tokens=1) == [0]


def test_one_gives_way_for_a_seat_even_when_memory_is_free():
    assert preempt(occupants((0, 1, 50), (0, 2, 50)), urgency=20, threshold=10, tokens=-7) == [1]


# ── finishing ──


@pytest.mark.parametrize(
    ("num_outputs", "token_id", "reason", "matched"),
    [
        (1, ord("q"), None, None),
        (2, ord("q"), None, None),
        (3, ord("q"), "stop", ord("q")),
        (3, ord("z"), "stop", ord("z")),
        (3, ord("a"), None, None),
        (5, ord("a"), "length", None),
        (5, ord("q"), "stop", ord("q")),
    ],
)
def test_when_a_request_is_over(num_outputs, token_id, reason, matched):
    message = generate("a", max_new=5, min_new_tokens=2, stop_token_ids=(ord("z"),))
    request = request_from(message, eos_ids=EOS, low_first=False, now_s=0.0, processed=0)
    request.output_ids = [1] * (num_outputs - 1) + [token_id]
    finish = finish_after(request, token_id)
    assert (finish and finish.reason, finish and finish.matched) == (reason, matched)


def test_a_simulated_future_keeps_a_token_a_request_free():
    assert not survives(6, [5], [9])
    assert survives(7, [5], [9])
    assert not survives(12, [5, 5], [9, 9])
    assert survives(13, [5, 5], [9, 9])
