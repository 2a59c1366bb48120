"""What start-up measures of steps whose costs are known."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from test_exactness import write_folder

from corymb.models.build import RunnerOptions, build
from corymb.scheduler.plan import Drafted, Sampled, StepPlan
from corymb.speculative.measuring import Room, measure, measure_server
from corymb.speculative.ngram import NgramSpeculation

NUM_DRAFTS = 3


def run(plans: Sequence[StepPlan]) -> list[Sampled]:
    return [took(plan) for plan in plans]


def took(plan: StepPlan) -> Sampled:
    """Each token takes 1 ms beside 5 ms for the step, and every token of context a thousandth more."""
    windows = np.zeros(plan.num_rows, np.int32) if plan.windows is None else plan.windows.most
    verify_s = (0.005 + 0.001 * (plan.num_rows + windows.sum())) * (1 + 0.001 * float(plan.starts.mean()))
    draft_s = 0.002 + 0.0001 * plan.num_rows if windows.any() else 0.0
    drafted = Drafted(windows, None, draft_s, verify_s) if windows.any() else None
    ones = np.ones(plan.num_rows, np.int32)
    return Sampled(ones, ones, draft_s + verify_s, drafted=drafted)


@pytest.mark.parametrize("context_length", [64, 8192])
def test_costs_are_found_at_every_size_and_context(context_length: int) -> None:
    costs = measure(run, num_drafts=NUM_DRAFTS, room=Room(32, context_length))
    assert costs.context_share == pytest.approx(0.001, rel=0.01)
    for num_rows, budget, context in ((1, 0, 0.0), (1, 3, 500.0), (16, 48, 4000.0), (32, 96, 0.0)):
        drafts = budget > 0
        told = float(costs.step_s(num_rows, np.array([budget]), context, drafts=drafts)[0])
        draft_s = (0.002 + 0.0001 * num_rows) * drafts
        assert told == pytest.approx(draft_s + (0.005 + 0.001 * (num_rows + budget)) * (1 + 0.001 * context), rel=0.03)


def test_a_server_too_short_for_two_contexts_is_measured_at_one() -> None:
    assert measure(run, num_drafts=NUM_DRAFTS, room=Room(1, NUM_DRAFTS + 4)).context_share == 0.0


def test_a_real_runner_is_measured(tmp_path: Path) -> None:
    folder = write_folder(tmp_path, "CorymbHash", None)
    speculation = NgramSpeculation(NUM_DRAFTS, least=1, longest=4)
    built = build(RunnerOptions(folder, max_running_requests=4, speculation=speculation), lambda *_: None)
    try:
        costs = measure_server(built)
    finally:
        built.runner.close()
    assert 0 <= costs.context_share < 1
    assert costs.step_s(4, np.array([12]), 100.0, drafts=True)[0] > 0
