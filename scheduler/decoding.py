"""The running requests' share of a step: one token each, and what to do when there is no room for it."""

from dataclasses import dataclass

import numpy as np

from corymb.scheduler.config import SchedulerConfig
from corymb.scheduler.drafting import Drafting, pick
from corymb.scheduler.ledger import Ledger
from corymb.scheduler.parts import Part, decode_part
from corymb.scheduler.plan import Int32, Windows
from corymb.scheduler.ratio import NewTokenRatio
from corymb.scheduler.request import Request, State
from corymb.scheduler.retraction import victims
from corymb.scheduler.running import Batch
from corymb.scheduler.tally import Tally


@dataclass(frozen=True, slots=True)
class Reserved:
    """Rows of a decode step and their new slots: one each, or as `windows` says."""

    batch: Batch
    slots: Int32
    windows: Windows | None = None

    def pick(self, index: list[int]) -> "Reserved":
        """Some of the rows."""
        batch = Batch(self.batch.rows[index], [self.batch.requests[i] for i in index])
        if self.windows is None:
            return Reserved(batch, self.slots[index])
        owners = np.repeat(np.arange(len(self.batch.rows)), self.windows.slot_counts)
        return Reserved(batch, self.slots[np.isin(owners, index)], pick(self.windows, index))


class Decoding:
    """Reserves a slot for every running row, retracting requests until the rest fits."""

    def __init__(
        self,
        ledger: Ledger,
        config: SchedulerConfig,
        ratio: NewTokenRatio,
        tally: Tally,
        *,
        drafting: Drafting | None = None,
    ) -> None:
        """`ratio` is told how decoding goes; `drafting`: of a server that speculates."""
        self._ledger = ledger
        self._config = config
        self._ratio = ratio
        self._tally = tally
        self._ones = np.ones(ledger.cache.config.num_rows, np.int32)
        self._drafting = drafting
        self._slides = ledger.cache.config.num_sliding_tokens > 0

    def reserve(self, step: int) -> Reserved | None:
        """The rows that take part in a step and their slots; None when there are none, or when they must wait."""
        retracted = False
        while len((batch := self._ledger.running.wanting()).rows):
            if self._slides:
                self._ledger.cache.slide(batch.rows, self._ledger.rows.computed[batch.rows])
            reserved = self._grow(step, batch, drafts=not retracted)
            if reserved is not None:
                if not retracted:
                    self._ratio.decay()
                return reserved
            if not self._make_room():
                return None
            retracted = True
        return None

    def _grow(self, step: int, batch: Batch, *, drafts: bool) -> Reserved | None:
        """Slots for everybody's next token, and for drafts where there is room for them; None: not even for tokens."""
        if self._drafting is None:
            slots = self._ledger.cache.grow(batch.rows, self._ones[: len(batch.rows)])
            return None if slots is None else Reserved(batch, slots)
        for windows in self._drafting.choices(step, batch.rows, drafts=drafts):
            slots = self._ledger.cache.grow(batch.rows, windows.slot_counts)
            if slots is not None:
                return Reserved(batch, slots, windows)
        return None

    def part(self, reserved: Reserved) -> Part | None:
        """Plans the reserved rows, without those that were preempted since."""
        here = [i for i, request in enumerate(reserved.batch.requests) if request.state is State.RUNNING]
        if len(here) < len(reserved.batch.rows):
            if not here:
                return None
            reserved = reserved.pick(here)
        batch, progress = reserved.batch, self._ledger.rows
        part = decode_part(batch, reserved.slots, progress, reserved.windows)
        progress.computed[batch.rows] += 1
        progress.outputs[batch.rows] += 1
        if reserved.windows is not None:
            progress.pending[batch.rows] += reserved.windows.most
        return part

    def retract_one(self) -> None:
        """Retracts whoever would go first, whether memory is short or not: a test seam."""
        candidates = list(self._ledger.running.wanting().requests)
        if candidates:
            self._retract(candidates)

    def _make_room(self) -> bool:
        ledger = self._ledger
        wanting = ledger.running.wanting()
        if len(wanting.rows) < len(ledger.running):
            return False  # somebody's last token is in flight: its memory comes free with that result
        candidates = list(wanting.requests)
        if ledger.chunk is not None:
            candidates.append(ledger.chunk)
        if len(candidates) == 1:
            self._give_up(candidates[0])
            return False
        self._retract(candidates)
        return True

    def _give_up(self, request: Request) -> None:
        # Alone, and still no room: no retraction can help, and putting it off would last for ever.
        assert request.lease is not None
        row, rows = request.lease.row, self._ledger.rows
        if rows.last_step[row] > self._ledger.committed_step:
            return  # the token in flight may be its last
        self._ledger.give_up(request, int(rows.computed[row]) + 1)

    def _retract(self, candidates: list[Request]) -> None:
        by_priority = self._config.retraction_policy == "priority"
        first = victims(
            [len(each.output_ids) for each in candidates],
            [each.num_prompt for each in candidates],
            [each.urgency for each in candidates] if by_priority else None,
        )[0]
        self._ledger.unseat(candidates[first])
        self._tally.num_retractions += 1
        kept = self._ledger.running.everyone().rows
        if not len(kept):
            return
        self._ratio.raise_after_retraction(
            num_decoded=int(self._ledger.rows.outputs[kept].sum()),
            num_requests=len(kept),
            max_new=int(self._ledger.rows.max_new[kept].sum()),
        )
