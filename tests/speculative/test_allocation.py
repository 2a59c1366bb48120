"""Windows are beginnings that hold the likeliest drafts, and a budget is the best there is."""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from corymb.speculative.allocation import allot, survival

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
