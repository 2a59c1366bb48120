"""Holds every write of a GPU's runner against what the rows of its plan own, and lets it read nothing else.

Memory that nobody has written yet holds NaN, and page tables lead to a slot that nobody may touch wherever nothing is
reserved; so a read of either makes logits unusable.
"""

from collections.abc import Callable

import torch

from corymb.models.cuda_runner import CudaRunner
from corymb.scheduler.plan import Drafts, Masks, Sampled, StepPlan


class Guarded:
    """A runner under watch, made with one slot more than its scheduler knows."""

    def __init__(self, runner: CudaRunner) -> None:
        self._runner = runner
        parts = runner.parts
        self._rows = parts.rows
        self._trap = len(parts.kv[0].keys) - 1
        self._rows.table[1:] = self._trap
        drafted = getattr(parts.speculator.drafter, "_kv", ())
        self._keeps_drafts = bool(drafted) and not hasattr(parts.speculator.drafter, "_attention")
        self._pools = [pool for layer in [*parts.kv, *drafted] for pool in (layer.keys, layer.values)]
        self._num_own = 2 * len(parts.kv)
        for pool in self._pools:
            pool[1:] = torch.nan
        self.num_drafted = 0
        self.ends: set[int] = set()  # lengths at which rows drafted

    def launch(self, plan: StepPlan) -> "GuardedStep":
        step = GuardedStep(self, plan)
        step.watch(lambda: setattr(step, "inner", self._runner.launch(plan)))
        return step

    def close(self) -> None:
        self._runner.close()

    def state(self) -> list[torch.Tensor]:
        rows = self._rows
        return [tensor.clone() for tensor in (*self._pools, rows.table, rows.lengths, rows.last_sampled)]

    def check(self, plan: StepPlan, before: list[torch.Tensor]) -> None:
        *pools, table, lengths, last = [_changed(one, two) for one, two in zip(before, self.state(), strict=True)]
        known = set(plan.rows.tolist()) | {0}
        assert set(lengths.nonzero()[:, 0].tolist()) | set(last.nonzero()[:, 0].tolist()) <= known
        assert {tuple(place) for place in table.nonzero().tolist()} <= self._reserved(plan)
        for index, pool in enumerate(pools):
            written = set(pool.flatten(1).any(dim=1).nonzero()[:, 0].tolist())
            # Of drafts that are not accepted, a block draft keeps nothing.
            kept = index >= self._num_own and self._keeps_drafts
            assert written <= self._owned(plan, before, kept=kept), (index, plan)

    def _reserved(self, plan: StepPlan) -> set[tuple[int, int]]:
        """Entries of the page table that a plan sets."""
        windows = plan.windows
        starts, counts = (plan.starts, plan.widths) if windows is None else (windows.slot_starts, windows.slot_counts)
        own = {
            (row, start + place)
            for row, start, count in zip(plan.rows.tolist(), starts.tolist(), counts.tolist(), strict=True)
            for place in range(count)
        }
        shared = zip(plan.table.rows.tolist(), plan.table.positions.tolist(), strict=True)
        return own | set(shared) | {(0, position) for position in range(self._rows.table.shape[1])}

    def _owned(self, plan: StepPlan, before: list[torch.Tensor], *, kept: bool) -> set[int]:
        """Slots that a step may write: those behind what its rows have, as far as they are reserved, or, of what is
        `kept`, as far as the rows have come."""
        owned, old = {0}, before[-2]
        for index, row in enumerate(plan.rows.tolist()):
            first, last = int(plan.starts[index]), int(plan.starts[index] + plan.widths[index])
            if plan.windows is not None:
                first = int(old[row])
                last = first + 1 + int(plan.windows.most[index])
                self.ends.add(first)
            if kept:
                last = int(self._rows.lengths[row])
            owned |= set(self._rows.table[row, first:last].tolist())
        assert self._trap not in owned, "a row may write where nothing is reserved"
        return owned


class GuardedStep:
    """A StepResult."""

    def __init__(self, guard: Guarded, plan: StepPlan) -> None:
        self._guard = guard
        self._plan = plan
        self.inner: object = None

    def watch(self, work: Callable[[], None]) -> None:
        before = self._guard.state()
        work()
        if self._plan.constrained is None or self.inner is not None:
            self._guard.check(self._plan, before)

    def drafts(self) -> Drafts | None:
        return self.inner.drafts()

    def constrain(self, masks: Masks) -> None:
        self.watch(lambda: self.inner.constrain(masks))

    def wait(self) -> Sampled:
        sampled = self.inner.wait()
        assert not sampled.errors, "it read what nobody wrote"
        self._guard.num_drafted += sampled.drafted is not None
        return sampled


def _changed(before: torch.Tensor, after: torch.Tensor) -> torch.Tensor:
    """Where they differ; all NaN are one."""
    if not before.is_floating_point():
        return before != after
    return ~((before == after) | (before.isnan() & after.isnan()))
