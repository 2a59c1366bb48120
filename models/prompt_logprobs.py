"""Which of a step's positions score tokens of prompts."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from corymb.models.logprobs import Positions, Scores, log_probabilities, score
from corymb.models.placement import Place
from corymb.models.rows import Rows
from corymb.models.settings import Settings
from corymb.scheduler.plan import Int32, StepPlan

BLOCK = 128  # positions whose logits are in memory at once: a chunk's would take 2,048 × 262,144 × 4 bytes


@dataclass(frozen=True, slots=True)
class PromptPositions:
    """The positions of a step whose logits score the next token of their prompt."""

    tokens: NDArray[np.int64]  # [N], index into the step's tokens
    targets: NDArray[np.int64]  # [N], the token ids that are scored
    positions: Positions


def find(plan: StepPlan, rows: Rows, settings: Settings) -> PromptPositions | None:
    """The wanted positions of a plan, in order; None where there are none."""
    if plan.prompt_logprobs_from is None:
        return None
    owners: list[int] = []
    tokens: list[NDArray[np.int64]] = []
    targets: list[Int32] = []
    for index, offset, first, last in _spans(plan, rows):
        start = int(plan.starts[index])
        owners += [index] * (last - first)
        tokens.append(np.arange(offset + first, offset + last))
        targets.append(rows.prompts[plan.rows[index]][start + first + 1 : start + last + 1])
    if not owners:
        return None
    options = [settings.logprobs[int(plan.rows[owner])] for owner in owners]
    return PromptPositions(np.concatenate(tokens), np.concatenate(targets).astype(np.int64), Positions(owners, options))


def score_prompts(
    hidden: Tensor, found: PromptPositions, logits: Callable[[Tensor], Tensor], place: Place
) -> list[Scores]:
    """Scores the found positions from hidden states [T, H], a block at a time."""
    scores = []
    for start in range(0, len(found.tokens), BLOCK):
        block = slice(start, start + BLOCK)
        positions = Positions(found.positions.owners[block], found.positions.options[block])
        logprobs = log_probabilities(logits(hidden[place(found.tokens[block])]))
        scores.append(score(logprobs, place(found.targets[block]), positions, place))
    return scores


def unusable(scores: Sequence[Scores]) -> set[int]:
    """The plan's rows with a prompt position whose logits were NaN."""
    return {one.positions.owners[line] for one in scores for line in torch.nonzero(one.logprobs.isnan())[:, 0].tolist()}


def _spans(plan: StepPlan, rows: Rows) -> Iterator[tuple[int, int, int, int]]:
    """For each row that wants any: its index, its first token, and the wanted span relative to that token."""
    assert plan.prompt_logprobs_from is not None
    offsets = np.cumsum(plan.widths) - plan.widths
    for index in np.flatnonzero(plan.prompt_logprobs_from < plan.widths).tolist():
        # The prompt's last position scores the first output token, which sampling reports.
        num_scoring = len(rows.prompts[plan.rows[index]]) - 1 - int(plan.starts[index])
        last = min(int(plan.widths[index]), num_scoring)
        first = int(plan.prompt_logprobs_from[index])
        if first < last:
            yield index, int(offsets[index]), first, last
