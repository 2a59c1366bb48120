"""Budgets in the real loop, with steps that are said to take what curves say: nearly as fast as without drafts where
they are bad, and faster where they are good. Scheduler, cache, overlap, verification and drafter are the server's."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from by_loop import serve
from drafting import Drafts, ScriptedDrafter
from test_exactness import generate, hashed, write_folder

from corymb.scheduler.plan import Int32, Sampled, StepPlan
from corymb.speculative.allocation import CapAccept, Compact
from corymb.speculative.budget import Budgets
from corymb.speculative.cost_model import CostModel, envelope
from corymb.speculative.verification import Allotment

NUM_DRAFTS, NUM_ROWS = 4, 4
NUM_TOKENS = 250
FARTHEST = NUM_ROWS * (1 + NUM_DRAFTS)


def costs() -> CostModel:
    """Two cores, a small model."""
    return CostModel(0.0, envelope([1, 4], [0.004, 0.007], farthest=8), envelope([1, 20], [0.02, 0.08], farthest=40))


class Timed:
    """A WindowPolicy around `Budgets` that is told other times: what `costs` says, `factor` times."""

    num_drafts = NUM_DRAFTS

    def __init__(self, factor: float) -> None:
        self.inner = Budgets(NUM_DRAFTS, NUM_ROWS + 1, costs())
        self.seconds, self.plain_s, self.num_tokens, self.num_drafted = 0.0, 0.0, 0, 0
        self._truth, self._factor = costs(), factor

    def open(self, row: int, step: int) -> None:
        self.inner.open(row, step)

    def budget(self, step: int, rows: Int32, starts: Int32, most: Int32) -> int:
        return self.inner.budget(step, rows, starts, most)

    def learn(self, plan: StepPlan, sampled: Sampled) -> float | None:
        if plan.windows is None:
            return None
        drafted, truth = sampled.drafted, self._truth
        plain_s = self._factor * float(truth.verify.at(plan.num_rows))
        # As if only those that may count had been verified: what cap-accept looks at beside them is not paid for.
        count = 0 if drafted is None else int(drafted.allowed.sum())
        verify_s = self._factor * float(truth.verify.at(plan.num_rows + count))
        draft_s = 0.0 if drafted is None else float(truth.draft.at(plan.num_rows))
        if drafted is not None:
            drafted = replace(drafted, draft_s=draft_s, verify_s=verify_s)
        self.seconds += draft_s + verify_s
        self.plain_s += plain_s * int(sampled.counts.sum()) / plan.num_rows
        self.num_drafted += draft_s > 0
        return self.inner.learn(plan, replace(sampled, forward_s=draft_s + verify_s, drafted=drafted))


def run(folder: Path, *, right: float, factor: float, allotment: Allotment) -> Timed:
    """Drafts are right for a share of texts, at random places."""
    luck = np.random.default_rng(1)

    def say(said: list[int], count: int) -> list[int]:
        tokens = hashed(bytes(said), count, None)
        return [token if luck.random() < right else 0 for token in tokens]

    policy = Timed(factor)
    speculation = Drafts(lambda num_rows: ScriptedDrafter(say, NUM_DRAFTS, num_rows=num_rows), allotment=allotment)
    prompts = [f"prompt {number}".encode() for number in range(NUM_ROWS)]
    port = serve(
        write_folder(folder, "CorymbHash", None),
        [generate(str(number), prompt, NUM_TOKENS) for number, prompt in enumerate(prompts)],
        {"max_running_requests": NUM_ROWS, "speculation": speculation, "windows": policy},
    )
    for number, prompt in enumerate(prompts):
        assert port.token_ids(str(number)) == hashed(prompt, NUM_TOKENS, None)
    return policy


@pytest.mark.parametrize("factor", [0.5, 1.0, 2.0])
def test_bad_drafts_cost_less_than_three_percent(tmp_path: Path, factor: float) -> None:
    policy = run(tmp_path, right=0.05, factor=factor, allotment=Compact())
    assert policy.num_drafted > 0
    assert policy.plain_s / policy.seconds > 0.97


@pytest.mark.parametrize("allotment", [Compact(), CapAccept()], ids=["compact", "cap-accept"])
def test_good_drafts_are_used(tmp_path: Path, allotment: Allotment) -> None:
    policy = run(tmp_path, right=0.95, factor=1.0, allotment=allotment)
    assert policy.plain_s / policy.seconds > 1.3
