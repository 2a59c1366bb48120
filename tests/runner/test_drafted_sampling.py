"""What requests without a seed sample follows the target through the whole loop, whatever earlier drafts decided."""

from collections.abc import Iterator
from itertools import combinations
from pathlib import Path

import numpy as np
import pytest
import torch
from by_loop import serve
from drafting import Drafts, DrawingDrafter
from test_exactness import write_folder

from corymb.kernels.noise import row_keys
from corymb.models.speculation import Proposal
from corymb.scheduler.messages import Generate, Sampling
from corymb.scheduler.plan import Int32, Sampled, StepPlan

NUM_DRAFTS = 4
NUM_REQUESTS, NUM_TOKENS = 40, 100
FIRST_SEED = 3
VOCAB = 264
TARGET = torch.tensor([0.3, 0.3, 0.3, 0.1])  # of the first token ids; nothing else is ever said
DRAFT = torch.tensor([0.01, 0.01, 0.28, 0.7])
LAG = 2  # steps that a budget's confidence is old


class FirstLast:
    """The first row gets what the budget has left for it."""

    checks_all = False

    def allot(self, proposal: Proposal, most: Int32, budget: int | None) -> Int32:
        windows = most.copy()
        if budget is not None:
            windows[0] = min(int(most[0]), budget - int(most[1:].sum()))
        return windows


class DoubtfulBudgets:
    """Leaves the first row no draft two steps behind a doubt of its last one: a doubt of the draft before that, at a
    place that a row which moved by one token each time is now about to draft again."""

    num_drafts = NUM_DRAFTS

    def __init__(self) -> None:
        self._doubts: dict[tuple[int, int], bool] = {}  # by step and row
        self.num_trimmed = 0
        self.said: list[int] = []  # by first rows

    def open(self, row: int, step: int) -> None:
        pass

    def budget(self, step: int, rows: Int32, starts: Int32, most: Int32) -> int | None:
        if not self._doubts.get((step - LAG, int(rows[0]))):
            return None
        self.num_trimmed += 1
        return int(most[1:].sum())

    def learn(self, plan: StepPlan, sampled: Sampled) -> None:
        if plan.windows is not None:
            self.said += sampled.token_ids[: sampled.counts[0]].tolist()
        if sampled.drafted is not None and sampled.drafted.confidence is not None:
            doubts = sampled.drafted.confidence[:, -1] < 0.5
            self._doubts |= {(plan.step, row): bool(it) for row, it in zip(plan.rows.tolist(), doubts, strict=True)}


def requests(*, seeded: bool, **sampling: float) -> list[Generate]:
    bias = {token: 60 + float(chance.log()) for token, chance in enumerate(TARGET)}
    settings = {"max_new_tokens": NUM_TOKENS, "ignore_eos": True, "logit_bias": bias, "seeded": seeded, **sampling}
    prompt = np.array([97], np.int32).tobytes()
    choices = [Sampling(seed=7 * index + FIRST_SEED, **settings) for index in range(NUM_REQUESTS)]  # type: ignore[arg-type]
    return [Generate(rid=str(index), prompt=prompt, sampling=each) for index, each in enumerate(choices)]


def run(tmp_path: Path, asked: list[Generate]) -> tuple[DrawingDrafter, DoubtfulBudgets]:
    windows = DoubtfulBudgets()
    speculation = Drafts(
        lambda num_rows: DrawingDrafter(DRAFT, VOCAB, NUM_DRAFTS, num_rows=num_rows), allotment=FirstLast()
    )
    options = {"max_running_requests": 2, "speculation": speculation, "windows": windows}
    serve(write_folder(tmp_path, "CorymbUniform"), asked, options)
    (drafter,) = speculation.drafters
    assert isinstance(drafter, DrawingDrafter)
    return drafter, windows


@pytest.mark.parametrize("filters", [{}, {"top_k": len(TARGET)}], ids=["", "filtered"])
def test_pairs_come_as_often_as_the_target_says(tmp_path: Path, filters: dict[str, int]) -> None:
    _, windows = run(tmp_path, requests(seeded=False, **filters))
    assert windows.num_trimmed > 400
    pairs = np.array(windows.said[: len(windows.said) // 2 * 2]).reshape(-1, 2)
    counts = np.bincount(pairs[:, 0] * len(TARGET) + pairs[:, 1], minlength=len(TARGET) ** 2)
    expected = len(pairs) * (TARGET[:, None] * TARGET).reshape(-1).double().numpy()
    chi_square = float(((counts - expected) ** 2 / expected).sum())
    assert chi_square < 37.7  # 15 degrees of freedom: one fair run in a thousand is above


def drawn(drafter: DrawingDrafter) -> Iterator[tuple[int, tuple[int, ...]]]:
    """Index of an output token, and a key that it was drafted with."""
    for length, keys in drafter.drawn_with:
        for place, key in enumerate(keys.tolist()):
            yield length + place, tuple(key)  # the prompt is one token long, and so is the anchor


def test_drafts_with_a_seed_have_the_targets_noise_and_others_never_the_same_twice(tmp_path: Path) -> None:
    def of_target(index: int) -> tuple[int, ...]:
        return tuple(row_keys(np.array([FIRST_SEED], np.uint64), np.array([index], np.int32))[0].tolist())

    seeded, free = (list(drawn(run(tmp_path, requests(seeded=each)[:1])[0])) for each in (True, False))
    assert all(key == of_target(index) for index, key in seeded)
    assert all(one != other for one, other in combinations([key for _, key in free], 2))
    assert not {key for _, key in free} & {of_target(index) for index in range(NUM_TOKENS + NUM_DRAFTS)}
