"""How far rows may draft, and the slots that takes."""

from collections.abc import Iterator

import numpy as np

from corymb.cache.cache import Cache
from corymb.scheduler.plan import Int32, Windows
from corymb.scheduler.running import Rows
from corymb.scheduler.windows import WindowPolicy


class Drafting:
    """Plans windows under what is certain: a row has `computed` tokens at least and `pending` more at most."""

    # positions of a row   [0, computed) written or in flight   [computed, computed + pending] its token's, somewhere
    #                      then `most` drafts; all of it reserved

    def __init__(self, cache: Cache, rows: Rows, policy: WindowPolicy) -> None:
        """Reads both, changes neither."""
        self.policy = policy
        self._reserved = cache.rows.reserved
        self._rows = rows
        self._context_length = cache.config.context_length

    def choices(self, step: int, rows: Int32, *, drafts: bool) -> Iterator[Windows]:
        """Windows for a step of these rows, the best first; the last drafts nothing."""
        if drafts:
            most = self._most(rows)
            budget = self.policy.budget(step, rows, self._rows.computed[rows], most) if most.any() else 0
            if budget != 0:
                yield self._windows(rows, most, budget)
        yield self._windows(rows, np.zeros(len(rows), np.int32), None)

    def _most(self, rows: Int32) -> Int32:
        progress = self._rows
        wanted = progress.max_new[rows] - progress.outputs[rows] - 1
        # One token more must fit behind the farthest that this step may reach: the next is planned before it is known.
        room = self._context_length - 2 - progress.computed[rows] - progress.pending[rows]
        most = np.minimum(np.minimum(wanted, room), self.policy.num_drafts)
        bounded: Int32 = np.maximum(most, 0).astype(np.int32)
        return bounded

    def _windows(self, rows: Int32, most: Int32, budget: int | None) -> Windows:
        reserved = self._reserved[rows]
        ends = self._rows.computed[rows] + self._rows.pending[rows] + 1 + most
        return Windows(most, budget, slot_starts=reserved, slot_counts=np.maximum(ends - reserved, 0).astype(np.int32))


def pick(windows: Windows, index: list[int]) -> Windows:
    """The windows of some rows; the budget stays that of all."""
    return Windows(windows.most[index], windows.budget, windows.slot_starts[index], windows.slot_counts[index])
