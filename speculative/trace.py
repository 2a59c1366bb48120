"""A line of JSON for every step of a server that drafts: what was foreseen, and what came of it."""

import json
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from corymb.scheduler.plan import Int32, Sampled, StepPlan
from corymb.scheduler.windows import WindowPolicy
from corymb.speculative.budget import Decision

MOST_BYTES = 1 << 30

_log = logging.getLogger(__name__)


class Trace:
    """Owns a file. Every line is on its way to the disk when `write` returns. A file that is full, or cannot be written
    to any more, ends the trace and nothing else."""

    def __init__(self, path: Path, *, most_bytes: int = MOST_BYTES) -> None:
        """Begins the file anew. Raises OSError."""
        self._file = path.open("w", encoding="utf-8", buffering=1)
        self._left = most_bytes

    def write(self, entry: dict[str, Any]) -> None:
        """Appends an object."""
        if self._file.closed:
            return
        line = json.dumps(entry, separators=(",", ":")) + "\n"
        self._left -= len(line)
        if self._left < 0:
            self._end("it is full")
            return
        try:
            self._file.write(line)
        except OSError as error:
            self._end(str(error))

    def close(self) -> None:
        """Ends the file."""
        self._file.close()

    def _end(self, why: str) -> None:
        _log.warning("The trace of speculation %s ends here: %s", self._file.name, why)
        self._file.close()


class Traced:
    """A WindowPolicy that writes down what another does."""

    def __init__(self, policy: WindowPolicy, trace: Trace, foreseen: Callable[[], Decision | None]) -> None:
        """`foreseen`: what the policy expected when it was last asked for a budget; None where it expects nothing."""
        self.num_drafts = policy.num_drafts
        self._policy = policy
        self._trace = trace
        self._foreseen = foreseen
        self._decisions: dict[int, Decision | None] = {}  # by step, of those in flight

    def open(self, row: int, step: int) -> None:
        """See WindowPolicy."""
        self._policy.open(row, step)

    def budget(self, step: int, rows: Int32, starts: Int32, most: Int32) -> int | None:
        """See WindowPolicy."""
        chosen = self._policy.budget(step, rows, starts, most)
        self._decisions[step] = self._foreseen()
        return chosen

    def learn(self, plan: StepPlan, sampled: Sampled) -> float | None:
        """See WindowPolicy."""
        decision = self._decisions.get(plan.step)
        self._decisions = {step: kept for step, kept in self._decisions.items() if step > plan.step}
        expected_s = self._policy.learn(plan, sampled)
        if plan.windows is not None:
            self._trace.write(entry_of(plan, sampled, decision))
        return expected_s


def entry_of(plan: StepPlan, sampled: Sampled, decision: Decision | None) -> dict[str, Any]:
    """What a step of windows gave: lists have an entry a row. `budget` is what was allowed over all of them, None for
    no bound; `windows` what was verified of it."""
    assert plan.windows is not None, "only plans with windows are traced"
    drafted = sampled.drafted
    entry: dict[str, Any] = {
        "step": plan.step,
        "rows": plan.rows.tolist(),
        "most": plan.windows.most.tolist(),
        "budget": plan.windows.budget,
        "windows": [0] * plan.num_rows if drafted is None else drafted.num_verified.tolist(),
        "accepted": np.maximum(sampled.counts - 1, 0).tolist(),
        "step_s": round(sampled.forward_s, 6),
    }
    if decision is not None:
        entry |= {"foreseen_s": round(decision.step_s, 6), "foreseen_tokens": round(decision.tokens, 3)}
    if drafted is not None:
        entry |= {"draft_s": round(drafted.draft_s, 6), "verify_s": round(drafted.verify_s, 6)}
        if drafted.num_allowed is not None and (drafted.allowed != drafted.num_verified).any():
            entry["allowed"] = drafted.allowed.tolist()
        if drafted.confidence is not None:
            entry["confidence"] = np.round(drafted.confidence.astype(np.float64), 4).tolist()
    return entry
