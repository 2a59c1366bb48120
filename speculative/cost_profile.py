"""Measures what steps of the real loop cost, for the table that the cost model reads."""

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from corymb.models.build import build
from corymb.scheduler.config import SchedulerConfig
from corymb.scheduler.messages import Sampling
from corymb.scheduler.plan import LAST_SAMPLED, Int32, Sampled, StepPlan
from corymb.speculative.cost_model import envelope, read_table
from corymb.speculative.draft_files import update_metrics, write_json
from corymb.speculative.training_run import OnProgress
from corymb.speculative.trial import Trial, options_of
from corymb.speculative.writing import Task, Writer

TABLE = "sps.json"
SHARES = (0.0, 0.25, 0.5, 0.75, 1.0)  # of all drafts that could be verified
SETTLING = 3  # steps of every kind before those that count


@dataclass(frozen=True, slots=True)
class Cell:
    """A step's size: rows, and drafts verified over all of them."""

    num_rows: int
    budget: int

    @property
    def num_tokens(self) -> int:
        """That the target computes."""
        return self.num_rows + self.budget


@dataclass(frozen=True, slots=True)
class Step:
    """What one step took, in seconds."""

    draft_s: float
    verify_s: float
    rest_s: float


class Pinned:
    """A WindowPolicy that takes the cells of one number of rows in turns until each was measured often enough."""

    def __init__(self, num_drafts: int, num_rows: int, num_steps: int, clock: Callable[[], float]) -> None:
        self.num_drafts = num_drafts
        budgets = sorted({round(share * num_rows * num_drafts) for share in SHARES})
        self.cells = [Cell(num_rows, budget) for budget in budgets]
        self.steps: dict[Cell, list[Step]] = {cell: [] for cell in self.cells}
        self._num_rows = num_rows
        self._num_steps = SETTLING + num_steps
        self._clock = clock
        self._turn = 0
        self._last_s: float | None = None

    def is_done(self) -> bool:
        """Whether every cell has its steps."""
        return all(len(steps) >= self._num_steps for steps in self.steps.values())

    def open(self, row: int, step: int) -> None:
        """See WindowPolicy."""

    def budget(self, step: int, rows: Int32, starts: Int32, most: Int32) -> int | None:  # noqa: ARG002
        """See WindowPolicy."""
        self._turn += 1
        return self.cells[self._turn % len(self.cells)].budget

    def learn(self, plan: StepPlan, sampled: Sampled) -> None:
        """See WindowPolicy. Of steps that follow one another alone: between others, prompts were computed."""
        now_s, before_s, drafted = self._clock(), self._last_s, sampled.drafted
        decodes = bool((plan.token_ids == LAST_SAMPLED).all())
        self._last_s = now_s if decodes else None
        if not decodes or before_s is None:
            return
        took_s = now_s - before_s
        if drafted is None:
            cell, step = Cell(plan.num_rows, 0), Step(0.0, sampled.forward_s, took_s - sampled.forward_s)
        else:
            cell = Cell(plan.num_rows, int(drafted.num_verified.sum()))
            step = Step(drafted.draft_s, drafted.verify_s, took_s - drafted.draft_s - drafted.verify_s)
        if cell in self.steps:
            self.steps[cell].append(step)


@dataclass
class Measured:
    """All cells, settled."""

    steps: dict[Cell, Step] = field(default_factory=dict)  # medians

    def add(self, found: dict[Cell, list[Step]]) -> None:
        """Takes what one policy saw."""
        for cell, steps in found.items():
            kept = steps[SETTLING:]
            if kept:
                self.steps[cell] = Step(
                    median(step.draft_s for step in kept),
                    median(step.verify_s for step in kept),
                    median(step.rest_s for step in kept),
                )

    def table(self) -> dict[str, Any]:
        """SGLang's additive form: bias + alpha(rows) + theta(tokens), each rising."""
        drafting = [(cell.num_rows, step.draft_s) for cell, step in self.steps.items() if cell.budget]
        rows = _medians(drafting)
        tokens = _medians((cell.num_tokens, step.verify_s) for cell, step in self.steps.items())
        alpha = envelope(list(rows), list(rows.values()), farthest=max(rows))
        theta = envelope(list(tokens), list(tokens.values()), farthest=max(tokens))
        return {
            "bias_seconds": max(median(step.rest_s for step in self.steps.values()), 1e-9),
            "bs_probes": [int(probe) for probe in alpha.probes],
            "alpha_seconds": alpha.seconds.tolist(),
            "m_probes": [int(probe) for probe in theta.probes],
            "theta_seconds": theta.seconds.tolist(),
        }


def profile(
    trial: Trial, rows: Sequence[int], *, num_steps: int, context_tokens: int, on_progress: OnProgress
) -> dict[str, Any]:
    """Measures steps of `rows` rows each, with none to all of their drafts verified, and writes the table into the
    draft's folder; returns it with what it is worth. `trial.speculation` must heed budgets."""
    measured = Measured()
    longest = context_tokens + (len(SHARES) * (num_steps + SETTLING) + 2) * (trial.num_drafts + 1)
    built = build(options_of(replace(trial, num_running=max(rows)), longest), lambda *_: None)
    random = np.random.default_rng(trial.seed)
    config = SchedulerConfig(max_running_requests=max(rows), chunked_prefill_size=None, overlap_depth=0)
    try:
        for done, num_rows in enumerate(rows):
            on_progress("profile", done, len(rows), f"{num_rows} rows")
            pinned = Pinned(trial.num_drafts, num_rows, num_steps, time.perf_counter)
            most = longest - context_tokens - trial.num_drafts - 2
            sampling = Sampling(max_new_tokens=most, temperature=0.0, ignore_eos=True)
            tasks = [
                Task(random.integers(0, built.vocab_size, context_tokens).astype(np.int32), sampling)
                for _ in range(num_rows)
            ]
            Writer(built, config, windows=pinned).write_until(tasks, pinned.is_done)
            measured.add(pinned.steps)
    finally:
        built.runner.close()
    on_progress("profile", len(rows), len(rows))
    table = measured.table()
    path = trial.draft / TABLE
    write_json(path, table)
    error = relative_error(path, measured)
    update_metrics(trial.draft, "profile", {"cells": len(measured.steps), "median_relative_error": round(error, 4)})
    return table | {"median_relative_error": error}


def relative_error(path: Path, measured: Measured) -> float:
    """How far the table is from what it was made of, in the middle of all cells: it adds up what does not quite."""
    model = read_table(path)
    errors = []
    for cell, step in measured.steps.items():
        took_s = step.draft_s + step.verify_s + step.rest_s
        expected_s = float(model.step_s(cell.num_rows, np.array([cell.budget]), 0.0, drafts=cell.budget > 0)[0])
        errors.append(abs(expected_s - took_s) / took_s)
    return median(errors)


def _medians(pairs: Iterable[tuple[int, float]]) -> dict[int, float]:
    found: dict[int, list[float]] = {}
    for count, seconds in pairs:
        found.setdefault(count, []).append(seconds)
    return {count: median(found[count]) for count in sorted(found)}
