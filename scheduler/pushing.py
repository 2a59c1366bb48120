"""Preemption carried out: pushes running requests back into the queue for a more urgent one."""

from corymb.scheduler.admission import OUTPUT_CLIP, Budget
from corymb.scheduler.ledger import Ledger
from corymb.scheduler.preemption import Occupant, preempt
from corymb.scheduler.ratio import NewTokenRatio
from corymb.scheduler.request import Request
from corymb.scheduler.tally import Tally


class Pushing:
    """Knows who runs and what each one's leaving would free."""

    def __init__(self, ledger: Ledger, ratio: NewTokenRatio, tally: Tally, *, threshold: int) -> None:
        """`threshold`: a request gives way only to one that is more urgent by more than this."""
        self._ledger = ledger
        self._ratio = ratio
        self._tally = tally
        self._threshold = threshold

    def push_for(self, request: Request, tokens: int, budget: Budget) -> bool:
        """Frees `tokens` and a seat for `request`; False, and nothing changed, when that is not possible."""
        # Who only waits for its last token leaves by itself: pushing it back would cost a prefill and gain nothing.
        running = list(self._ledger.running.wanting().requests)
        rooms = [self._room(each) for each in running]
        occupants = [
            Occupant(each.urgency, each.entered, self._held(each) + int(room))
            for each, room in zip(running, rooms, strict=True)
        ]
        chosen = preempt(occupants, urgency=request.urgency, threshold=self._threshold, tokens=tokens)
        for i in chosen:
            budget.reserve(full=-rooms[i])
            self._ledger.unseat(running[i])
            self._tally.num_preemptions += 1
        return bool(chosen)

    def _room(self, request: Request) -> float:
        assert request.lease is not None
        row, rows = request.lease.row, self._ledger.rows
        return min(int(rows.max_new[row] - rows.outputs[row]), OUTPUT_CLIP) * self._ratio.value

    def _held(self, request: Request) -> int:
        assert request.lease is not None
        return int(self._ledger.rows.computed[request.lease.row]) - request.lease.num_cached
