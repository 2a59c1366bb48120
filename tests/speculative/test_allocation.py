"""Windows are beginnings that hold the likeliest drafts, and a budget is the best there is."""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from corymb.scheduler.plan import Drafted, Sampled, StepPlan, Windows
from corymb.speculative.allocation import allot, survival
from corymb.speculative.budget import RETRY, Budgets
from corymb.speculative.cost_model import CostModel, Curve

CHANCES = st.sampled_from([0.125, 0.25, 0.5, 0.75, 1.0])


@st.composite
def blocks(draw) -> tuple[np.ndarray, np.ndarray, int]:
    num_rows, num_drafts = draw(st.integers(1, 4)), draw(st.integers(1, 4))
    confidence = [[draw(CHANCES) for _ in range(num_drafts)] for _ in range(num_rows)]
    most = [draw(st.integers(0, num_drafts)) for _ in range(num_rows)]
    budget = draw(st.integers(0, num_rows * num_drafts))
    return survival(np.array(confidence, np.float32)), np.array(most, np.int32), budget


@given(blocks())
def test_no_windows_of_the_same_budget_hold_more(block) -> None:
    survivals, most, budget = block
    windows = allot(survivals, most, budget)
    assert (windows <= most).all()
    assert windows.sum() == min(budget, int(most.sum()))

    def worth(widths) -> float:
        return sum(float(survivals[row, :width].sum()) for row, width in enumerate(widths))

    others = itertools.product(*[range(width + 1) for width in most.tolist()])
    assert worth(windows.tolist()) == pytest.approx(max(worth(each) for each in others if sum(each) <= budget))


@given(blocks())
def test_more_budget_takes_nothing_away(block) -> None:
    survivals, most, budget = block
    assert (allot(survivals, most, budget) <= allot(survivals, most, budget + 1)).all()


def test_equal_chances_go_by_place_and_then_by_row() -> None:
    survivals = np.full((3, 2), 0.5, np.float32)
    most = np.full(3, 2, np.int32)
    assert allot(survivals, most, 2).tolist() == [1, 1, 0]
    assert allot(survivals, most, 4).tolist() == [2, 1, 1]


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
    budgets.budget(3, rows, rows, most)
    costs._corrections.clear()
    chosen = budgets._choose(3, rows, 0.0, most)
    ordered = sorted(survival(known).ravel().tolist(), reverse=True)
    rates = [
        (len(rows) + sum(ordered[:k])) / float(costs.step_s(len(rows), np.array([k]), 0.0, drafts=k > 0)[0])
        for k in range(len(ordered) + 1)
    ]
    assert rates[chosen] == pytest.approx(max(rates), rel=1e-5)


def test_drafting_that_costs_more_than_it_gives_is_left_out_and_tried_again() -> None:
    costs = CostModel(0.001, line(start=0.05, slope=0.0), line(start=0.01, slope=0.01))
    budgets = Budgets(3, 4, costs)
    rows, most = np.array([1], np.int32), np.array([3], np.int32)
    answers = [budgets.budget(step, rows, rows, most) for step in range(2 * RETRY)]
    assert answers.count(0) == 2 * RETRY - 2
    assert answers[RETRY - 1] is None


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


def test_costs_of_nothing_stay_nothing() -> None:
    costs = CostModel(0.001, line(start=0.0, slope=0.0), line(start=0.0, slope=0.0))
    assert costs.learn(5, 10.0, 0.02) == 0.0
    assert costs.step_s(1, np.array([4]), 0.0, drafts=True).tolist() == [0.001]
