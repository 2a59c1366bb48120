"""Trains a draft: lessons, losses, steps, and figures on the way."""

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from corymb.speculative.draft_loss import Losses, Vocabulary, losses
from corymb.speculative.lessons import Lesson, Lessons
from corymb.speculative.trainable import TrainableDraft
from corymb.speculative.training_state import Progress, TrainingState

MAX_NORM = 1.0
EVERY_FIGURES = 50  # steps


@dataclass(frozen=True, slots=True)
class Schedule:
    """How long and how fast."""

    num_steps: int = 12_000
    learning_rate: float = 2e-3
    warm_up_steps: int = 200
    save_steps: int = 500  # between two saves: what a kill costs at most

    def rate(self, step: int) -> float:
        """Rises, then falls along a cosine to zero."""
        if step < self.warm_up_steps:
            return self.learning_rate * (step + 1) / self.warm_up_steps
        done = (step - self.warm_up_steps) / max(1, self.num_steps - self.warm_up_steps)
        return self.learning_rate * (1 + math.cos(math.pi * done)) / 2


class Trainer:
    """Owns the optimiser. Goes on from where its state file is."""

    def __init__(
        self,
        draft: TrainableDraft,
        lessons: Lessons,
        vocabulary: Vocabulary,
        schedule: Schedule,
        *,
        folder: Path,
        signature: dict[str, Any],
    ) -> None:
        self._draft = draft
        self._lessons = lessons
        self._vocabulary = vocabulary
        self._schedule = schedule
        on_gpu = vocabulary.head.is_cuda
        self._optimizer = torch.optim.AdamW(
            draft.parameters(), lr=schedule.learning_rate, betas=(0.9, 0.95), weight_decay=0.0, fused=on_gpu
        )
        self._device = vocabulary.head.device
        self._state = TrainingState(folder, {**signature, "schedule": asdict(schedule)})
        self.progress = self._state.load(draft, self._optimizer)

    @property
    def is_done(self) -> bool:
        """Whether all steps have been taken."""
        return self.progress.step >= self._schedule.num_steps

    def run(self, on_step: Callable[[Progress], None], *, until_s: float = math.inf) -> None:
        """Trains to the end, or to the last save that fits before the monotonic clock shows `until_s`."""
        taken_s = 0.0
        while not self.is_done and time.monotonic() + taken_s < until_s:
            begun_s = time.monotonic()
            self._interval(on_step)
            taken_s = time.monotonic() - begun_s

    def _interval(self, on_step: Callable[[Progress], None]) -> None:
        """Up to the next save, at which the numbers are rounded: a save at any other step would change the run."""
        schedule, progress = self._schedule, self.progress
        end = min(schedule.num_steps, (progress.step // schedule.save_steps + 1) * schedule.save_steps)
        begun_s = time.monotonic()
        before_s = progress.seconds
        since: list[Losses] = []
        while progress.step < end:
            since.append(self._step(progress.step))
            progress.step += 1
            if progress.step % EVERY_FIGURES == 0 or progress.step == end:
                progress.seconds = before_s + time.monotonic() - begun_s
                progress.history.append(figures(since, progress))
                since.clear()
                on_step(progress)
        progress.seconds = before_s + time.monotonic() - begun_s
        self._state.save(self._draft, self._optimizer, progress)

    def _step(self, step: int) -> Losses:
        for group in self._optimizer.param_groups:
            group["lr"] = self._schedule.rate(step)
        found = loss_of(self._draft, self._lessons.lesson(step), self._vocabulary)
        self._optimizer.zero_grad(set_to_none=True)
        found.total.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(self._draft.parameters(), MAX_NORM)
        self._optimizer.step()
        return replace(found, total=found.total.detach())  # kept a while: without the graph behind it


def loss_of(draft: TrainableDraft, lesson: Lesson, vocabulary: Vocabulary) -> Losses:
    """One lesson's losses; products in bfloat16 on a GPU."""
    with torch.autocast(vocabulary.head.device.type, torch.bfloat16, enabled=vocabulary.head.is_cuda):
        guesses = draft(lesson.blocks)
    head = draft.markov_head
    table: Tensor | None = None if head.tied else head.markov_w2.weight
    return losses(guesses, lesson.answers, vocabulary, table=table)


def figures(since: Sequence[Losses], progress: Progress) -> dict[str, Any]:
    """One entry of the history: means over some steps. Teacher-forced, and so above what the real loop reaches."""
    accepted = torch.stack([found.accepted for found in since]).mean(0).cpu()
    terms = torch.stack([torch.stack((one.total, one.cross_entropy, one.l1, one.confidence)) for one in since])
    total, cross_entropy, l1, confidence = terms.mean(0).tolist()
    return {
        "step": progress.step,
        "seconds": round(progress.seconds, 2),
        "loss": total,
        "cross_entropy": cross_entropy,
        "l1": l1,
        "confidence": confidence,
        "accepted": [round(chance, 4) for chance in accepted.tolist()],
        "forced_length": 1 + accepted.cumprod(0).sum().item(),
    }
