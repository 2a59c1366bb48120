"""Whatever drafts are worth and whatever was measured at start-up: a server that drafts is hardly slower than one that
does not, and where drafts pay, they are used. Steps are simulated; what they cost and give is assumed."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pytest

from corymb.scheduler.plan import Drafted, Int32, Sampled, StepPlan, Windows
from corymb.speculative.budget import Budgets
from corymb.speculative.cost_model import CostModel, Curve

NUM_DRAFTS = 7
NUM_STEPS = 800
LAG = 1  # a step's results are known when the next has been planned

Factor = Callable[[int], float]  # real seconds to verify so many tokens, by those that start-up measured


def curve(**seconds: float) -> Curve:
    counts = [int(name[1:]) for name in seconds]
    return Curve(np.array(counts, np.float64), np.array(list(seconds.values())))


def two_cores() -> CostModel:
    """Where each token more costs nearly as much as the one before."""
    return CostModel(0.0, curve(_1=0.005, _32=0.02), curve(_1=0.022, _8=0.057, _32=0.1, _256=0.53))


def a_gpu() -> CostModel:
    """Where a few tokens more cost next to nothing."""
    return CostModel(0.0, curve(_1=0.0017, _128=0.0074), curve(_1=0.0087, _16=0.0088, _256=0.016, _1024=0.042))


@dataclass
class Outcome:
    to_plain: float  # tokens a second, by those of steps without drafts
    best: float  # the same of the best fixed window


def outcome(
    costs: Callable[[], CostModel], factor: Factor, accepts: float, num_rows: int, head: float | None
) -> Outcome:
    """Of a server whose drafts are accepted with the chance `accepts`, and whose head says `head`."""
    truth, random = costs(), np.random.default_rng(num_rows)
    budgets = Budgets(NUM_DRAFTS, num_rows + 1, costs())
    draft_s = float(truth.draft.at(num_rows))

    def verify_s(num_drafts: int) -> float:
        return factor(num_rows + num_drafts) * float(truth.verify.at(num_rows + num_drafts))

    seconds, tokens, flight = 0.0, 0, []
    for step in range(NUM_STEPS):
        budget = budgets.budget(step, *rows_of(num_rows))
        windows = np.full(num_rows, budget // num_rows, np.int32)
        windows[: budget % num_rows] += 1
        counts = 1 + (random.random((num_rows, NUM_DRAFTS)) < accepts).cumprod(axis=1).sum(axis=1)
        counts = np.minimum(counts, windows + 1).astype(np.int32)
        noise = float(np.exp(0.05 * random.standard_normal()))
        took = [noise * draft_s if budget else 0.0, noise * verify_s(budget)]
        confidence = None if head is None else np.full((num_rows, NUM_DRAFTS), head, np.float32)
        drafted = Drafted(windows, confidence, *took) if budget else None
        flight.append((plan(step, num_rows, budget), Sampled(counts, counts, sum(took), drafted=drafted)))
        if len(flight) > LAG:
            budgets.learn(*flight.pop(0))
        seconds, tokens = seconds + sum(took), tokens + int(counts.sum())
    plain = 1 / verify_s(0)
    given = [sum(accepts**place for place in range(window + 1)) for window in range(NUM_DRAFTS + 1)]
    rates = [each / (draft_s * (window > 0) + verify_s(window * num_rows)) / plain for window, each in enumerate(given)]
    return Outcome(tokens / seconds / num_rows / plain, max(rates))


def rows_of(num_rows: int) -> tuple[Int32, Int32, Int32]:
    return (
        np.arange(1, num_rows + 1, dtype=np.int32),
        np.full(num_rows, 10, np.int32),
        np.full(num_rows, NUM_DRAFTS, np.int32),
    )


def plan(step: int, num_rows: int, budget: int) -> StepPlan:
    rows, starts, most = rows_of(num_rows)
    ones, zeros = np.ones(num_rows, np.int32), np.zeros(num_rows, np.int32)
    windows = Windows(most if budget else zeros, budget, zeros, zeros)
    return StepPlan(step, rows, ones, starts, ones, zeros, ones.astype(np.bool_), ones, windows=windows)


FACTORS: dict[str, Factor] = {
    "as measured": lambda _: 1.0,
    "twice as long": lambda _: 2.0,
    "half as long": lambda _: 0.5,
    "many tokens longer": lambda count: 1 + 0.15 * float(np.log2(count)),
}


@pytest.mark.parametrize("factor", FACTORS)
@pytest.mark.parametrize(("num_rows", "costs"), [(1, two_cores), (8, two_cores), (32, two_cores), (8, a_gpu)])
@pytest.mark.parametrize("head", [None, 0.9], ids=["no head", "hopeful head"])
def test_bad_drafts_cost_next_to_nothing(factor: str, num_rows: int, costs, head: float | None) -> None:
    assert outcome(costs, FACTORS[factor], 0.12, num_rows, head).to_plain > 0.97


@pytest.mark.parametrize("factor", FACTORS)
@pytest.mark.parametrize("num_rows", [1, 8])
def test_good_drafts_give_nearly_what_the_best_fixed_window_does(factor: str, num_rows: int) -> None:
    found = outcome(two_cores, FACTORS[factor], 0.8, num_rows, None)
    assert found.best > 1.15
    assert found.to_plain > 0.93 * found.best
