"""The running requests' share of a step: one token each, and what to do when there is no room for it."""

from dataclasses import dataclass

import numpy as np

from corymb.scheduler.config import SchedulerConfig
from corymb.scheduler.ledger import Ledger
from corymb.scheduler.parts import Part, decode_part
from corymb.scheduler.plan import Int32
from corymb.scheduler.ratio import NewTokenRatio
from corymb.scheduler.request import Request, State
from corymb.scheduler.retraction import victims
from corymb.scheduler.running import Batch
from corymb.scheduler.tally import Tally


@dataclass(frozen=True, slots=True)
class Reserved:
    """Rows of a decode step and a slot for each."""

    batch: Batch
    slots: Int32


class Decoding:
    """Reserves a slot for every running row, retracting requests until the rest fits."""

    def __init__(self, ledger: Ledger, config: SchedulerConfig, ratio: NewTokenRatio, tally: Tally) -> None:
        """`ratio` is told how decoding goes."""
        self._ledger = ledger
        self._config = config
        self._ratio = ratio
        self._tally = tally
        self._ones = np.ones(ledger.cache.config.num_rows, np.int32)
        self._slides = ledger.cache.config.num_sliding_tokens > 0

    def reserve(self) -> Reserved | None:
        """The rows that take part and their slots; None when there are none, or when they must wait."""
        retracted = False
        while len((batch := self._ledger.running.wanting()).rows):
            if self._slides:
                self._ledger.cache.slide(batch.rows, self._ledger.rows.computed[batch.rows])
            slots = self._ledger.cache.grow(batch.rows, self._ones[: len(batch.rows)])
            if slots is not None:
                if not retracted:
                    self._ratio.decay()
                return Reserved(batch, slots)
            if not self._make_room():
                return None
            retracted = True
        return None

    def part(self, reserved: Reserved) -> Part | None:
        """Plans the reserved rows, without those that were preempted since."""
        batch, slots = reserved.batch, reserved.slots
        here = [i for i, request in enumerate(batch.requests) if request.state is State.RUNNING]
        if len(here) < len(batch.rows):
            if not here:
                return None
            batch, slots = Batch(batch.rows[here], [batch.requests[i] for i in here]), slots[here]
        part = decode_part(batch, slots, self._ledger.rows)
        self._ledger.rows.computed[batch.rows] += 1
        self._ledger.rows.outputs[batch.rows] += 1
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
