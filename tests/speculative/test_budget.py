"""Budgets are the best there is of what is known, and what is known is corrected."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from corymb.scheduler.plan import Drafted, Sampled, StepPlan, Windows
from corymb.speculative.allocation import survival
from corymb.speculative.budget import Budgets
from corymb.speculative.cost_model import CostModel, Curve, Took, read_table

CHANCES = st.sampled_from([0.125, 0.25, 0.5, 0.75, 1.0])


def line(*, start: float, slope: float) -> Curve:
    return Curve(np.array([0.0, 1000.0]), np.array([start, start + 1000 * slope]))


def plan(step: int, rows: np.ndarray, most: np.ndarray) -> StepPlan:
    ones, zeros = np.ones(len(rows), np.int32), np.zeros(len(rows), np.int32)
    windows = Windows(most, None, zeros, zeros)
    return StepPlan(step, rows, ones, zeros, ones, zeros, ones.astype(np.bool_), ones, windows=windows)


def results(confidence: np.ndarray, verified: np.ndarray, accepted: np.ndarray) -> Sampled:
    drafted = Drafted(verified.astype(np.int32), confidence.astype(np.float32), draft_s=0.001, verify_s=0.01)
    counts = (accepted + 1).astype(np.int32)
    return Sampled(np.zeros(counts.sum(), np.int32), counts, 0.01, drafted=drafted)


@given(st.lists(st.lists(CHANCES, min_size=3, max_size=3), min_size=1, max_size=4), st.floats(1e-5, 0.1))
def test_a_budget_gives_the_most_tokens_a_second(confidence, slope) -> None:
    costs = CostModel(0.001, line(start=0.002, slope=0.0001), line(start=0.01, slope=slope))
    budgets = Budgets(3, 9, costs)
    rows = np.arange(1, len(confidence) + 1, dtype=np.int32)
    most = np.full(len(rows), 3, np.int32)
    known = np.array(confidence, np.float32)
    nothing = np.zeros(len(rows), np.int32)
    budgets.learn(plan(1, rows, most), results(known, nothing, nothing))
    chosen = budgets.budget(3, rows, nothing, most)
    ordered = sorted(survival(known).ravel().tolist(), reverse=True)
    rates = [
        (len(rows) + sum(ordered[:k])) / float(costs.step_s(len(rows), np.array([k]), 0.0, drafts=k > 0)[0])
        for k in range(len(ordered) + 1)
    ]
    assert rates[chosen] == pytest.approx(max(rates), rel=1e-5)


def test_drafting_that_costs_more_than_it_gives_is_left_out_and_hardly_tried_again() -> None:
    costs = CostModel(0.001, line(start=0.05, slope=0.0), line(start=0.01, slope=0.01))
    budgets = Budgets(3, 4, costs)
    rows, most, one = np.array([1], np.int32), np.array([3], np.int32), np.ones(1, np.int32)
    answers = []
    for step in range(1000):
        answers.append(budgets.budget(step, rows, rows, most))
        if answers[-1]:
            drafted = Drafted(one * answers[-1], None, draft_s=0.05, verify_s=0.01 + 0.01 * (1 + answers[-1]))
            took = Sampled(one, one, 0.09, drafted=drafted)
        else:
            took = Sampled(one, one, 0.02)
        budgets.learn(plan(step, rows, most if answers[-1] else 0 * most), took)
    tries = [step for step, answer in enumerate(answers) if answer]
    assert 1 <= len(tries) <= 4  # each costs at least 50 ms; the others took 20 s together
    assert set(answers) <= {0, 1, 2, 3}


def test_a_row_of_another_request_is_not_judged_by_the_one_before() -> None:
    costs = CostModel(0.001, line(start=0.0, slope=0.0), line(start=0.01, slope=0.0001))
    budgets = Budgets(2, 4, costs)
    rows, most = np.array([1], np.int32), np.array([2], np.int32)
    hopeless = np.array([[0.001, 0.001]])
    for step in range(4):
        budgets.budget(step, rows, rows, most)
        budgets.learn(plan(step, rows, most), results(hopeless, np.array([2]), np.array([2])))
    assert budgets.budget(4, rows, rows, most) == 0
    budgets.open(1, 4)
    budgets.learn(plan(3, rows, most), results(hopeless, np.array([2]), np.array([2])))  # was on its way
    assert budgets.budget(6, rows, rows, most) == 2


def test_confidence_counts_two_steps_later() -> None:
    costs = CostModel(0.001, line(start=0.0, slope=0.0), line(start=0.01, slope=0.001))
    budgets = Budgets(2, 4, costs)
    rows, most = np.array([1], np.int32), np.array([2], np.int32)
    budgets.learn(plan(5, rows, most), results(np.array([[0.001, 0.001]]), np.array([2]), np.array([2])))
    assert [budgets.budget(step, rows, rows, most) for step in (6, 7)] == [2, 0]


@pytest.mark.parametrize(("least_gain", "chosen"), [(0.0, 1), (0.1, 1), (0.5, 3)])
def test_less_than_all_is_verified_only_for_enough_gain(least_gain: float, chosen: int) -> None:
    """One draft is certain and two are hopeless: one gives 2 / 0.02 s, all give 2.01 / 0.026 s."""
    costs = CostModel(0.0, line(start=0.0, slope=0.0), line(start=0.014, slope=0.003))
    budgets = Budgets(3, 4, costs, least_gain=least_gain)
    rows, most, ones = np.array([1], np.int32), np.array([3], np.int32), np.ones(1, np.int32)
    nothing = Drafted(0 * ones, np.array([[1.0, 0.01, 0.01]], np.float32), draft_s=0.0, verify_s=0.017)
    budgets.learn(plan(1, rows, most), Sampled(ones, ones, 0.017, drafted=nothing))
    assert budgets.budget(3, rows, rows, most) == chosen


def test_costs_of_nothing_stay_nothing() -> None:
    costs = CostModel(0.001, line(start=0.0, slope=0.0), line(start=0.0, slope=0.0))
    costs.learn(1, 4, 10.0, Took(0.01, 0.02))
    assert costs.step_s(1, np.array([4]), 0.0, drafts=True).tolist() == [0.001]


def test_a_step_without_drafts_corrects_what_is_thought_of_those_that_draft() -> None:
    costs = CostModel(0.0, line(start=0.002, slope=0.0), line(start=0.01, slope=0.001))
    before = costs.step_s(1, np.array([5]), 0.0, drafts=True)[0] - 0.002
    for _ in range(200):
        costs.learn(1, 0, 0.0, Took(None, 0.5 * 0.011))
    after = costs.step_s(1, np.array([5]), 0.0, drafts=True)[0] - 0.002
    assert after == pytest.approx(before / 2, rel=0.05)


def test_sizes_that_differ_are_corrected_apart() -> None:
    costs = CostModel(0.0, line(start=0.0, slope=0.0), line(start=0.01, slope=0.001))
    for _ in range(300):
        costs.learn(1, 0, 0.0, Took(None, 0.011))
        costs.learn(1, 7, 0.0, Took(0.0, 2 * 0.018))
    told = costs.step_s(1, np.array([0, 7]), 0.0, drafts=True)
    assert told == pytest.approx([0.011, 0.036], rel=0.15)


def test_one_step_that_stood_still_is_no_measure() -> None:
    costs = CostModel(0.0, line(start=0.0, slope=0.0), line(start=0.01, slope=0.001))
    for _ in range(20):
        costs.learn(1, 0, 0.0, Took(None, 0.011))
    costs.learn(1, 0, 0.0, Took(None, 30.0))
    assert costs.step_s(1, np.array([0]), 0.0, drafts=False)[0] < 0.014


def test_a_table_of_whole_steps_is_corrected_by_whole_steps(tmp_path: Path) -> None:
    path = tmp_path / "flat.json"
    path.write_text('{"sample_batch_tokens": [1, 8], "sample_steps_per_sec": [100, 50]}')
    costs = read_table(path)
    for _ in range(300):
        costs.learn(1, 0, 0.0, Took(None, 0.005))
        costs.learn(1, 7, 0.0, Took(0.01, 0.02))
    assert costs.step_s(1, np.array([0]), 0.0, drafts=False)[0] == pytest.approx(0.005, rel=0.2)
    assert costs.step_s(1, np.array([7]), 0.0, drafts=True)[0] == pytest.approx(0.03, rel=0.2)


def test_drafts_that_were_verified_but_could_not_count_are_no_failures() -> None:
    """As in cap-accept: all are verified, and the first of each row may be accepted."""
    costs = CostModel(0.001, line(start=0.0, slope=0.0), line(start=0.01, slope=0.0001))
    budgets = Budgets(3, 4, costs)
    rows, most, ones = np.array([1], np.int32), np.array([3], np.int32), np.ones(1, np.int32)
    for step in range(200):
        budgets.budget(step, rows, rows, most)
        drafted = Drafted(most, None, draft_s=0.0001, verify_s=0.01, num_allowed=ones)
        budgets.learn(plan(step, rows, most), Sampled(np.zeros(2, np.int32), 2 * ones, 0.01, drafted=drafted))
    assert budgets.budget(200, rows, rows, most) in {0, 3}  # 0 where a step without drafts is due
    assert budgets.budget(201, rows, rows, most) == 3


def test_a_head_that_promises_too_much_is_believed_no_longer() -> None:
    costs = CostModel(0.0, line(start=0.005, slope=0.0), line(start=0.02, slope=0.005))
    budgets = Budgets(3, 4, costs)
    rows, most, ones = np.array([1], np.int32), np.array([3], np.int32), np.ones(1, np.int32)
    sure = np.full((1, 3), 0.95, np.float32)
    answers = []
    for step in range(400):
        answers.append(budgets.budget(step, rows, rows, most))
        drafted = Drafted(ones * answers[-1], sure, 0.005, 0.025 + 0.005 * answers[-1]) if answers[-1] else None
        budgets.learn(plan(step, rows, most * bool(answers[-1])), Sampled(ones, ones, 0.025, drafted=drafted))
    assert np.count_nonzero(answers[100:]) < 12
