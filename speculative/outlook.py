"""What is thought of drafts before they are made: by what was thought two steps ago, and how such thoughts came out."""

from collections import deque

import numpy as np
from numpy.typing import NDArray

from corymb.scheduler.plan import Drafted, Int32, Sampled, StepPlan
from corymb.speculative.allocation import survival

Float32 = NDArray[np.float32]
Float64 = NDArray[np.float64]

_NEVER = -(1 << 40)

LAG = 2  # steps: a budget is known before the step that it is for has drafted, and the one before it has been read
OLDEST = 4  # steps: what was thought of a row's drafts before says nothing of the text where it is now
MEMORY = 100  # drafts of a place: after so many, what came before counts for a third
PRIOR = 4.0  # drafts that came true before the first: a server begins hopefully


class Outlook:
    """Chances of drafts by row and place. Where a draft has a confidence head, a place is trusted as far as that came
    true there lately; where not, and for rows of which nothing is known, drafts count as those of the place did."""

    def __init__(self, num_drafts: int, num_rows: int) -> None:
        self._confidence = np.ones((num_rows, num_drafts), np.float32)
        self._seen = np.full(num_rows, _NEVER, np.int64)  # step that a row's confidence is of
        self._opened = np.full(num_rows, -1, np.int64)  # step
        self._results: deque[tuple[StepPlan, Drafted]] = deque()
        # By place, of drafts that were verified behind accepted ones; each new one makes the others fade.
        self._tried = np.full(num_drafts, PRIOR)
        self._promised = np.full(num_drafts, PRIOR)  # the sum of their confidence
        self._accepted = np.full(num_drafts, PRIOR)

    def open(self, row: int, step: int) -> None:
        """Another request has the row from this step on."""
        self._opened[row] = step
        self._seen[row] = _NEVER

    def survivals(self, step: int, rows: Int32) -> Float32:
        """The chance [R, P] of each draft that it and all before it in its row are accepted."""
        while self._results and self._results[0][0].step <= step - LAG:
            self._take(*self._results.popleft())
        is_known = self._seen[rows] >= step - OLDEST
        trusted = self._confidence[rows] * (self._accepted / self._promised)
        chances = np.where(is_known[:, None], np.minimum(trusted, 1.0), self._accepted / self._tried)
        return survival(chances.astype(np.float32))

    def learn(self, plan: StepPlan, sampled: Sampled, drafted: Drafted) -> None:
        """Takes what became of a step's drafts."""
        self._results.append((plan, drafted))
        accepted, allowed = sampled.counts - 1, drafted.allowed
        for place in range(len(self._tried)):
            behind = (accepted >= place) & (allowed > place)
            count = int(behind.sum())
            if count:
                confidence = None if drafted.confidence is None else drafted.confidence[behind, place]
                promised = count if confidence is None else float(confidence.sum())
                self._note(place, count, promised, int((accepted[behind] > place).sum()))

    def _note(self, place: int, count: int, promised: float, accepted: int) -> None:
        kept = float(np.exp(-count / MEMORY))
        for sums, more in ((self._tried, count), (self._promised, promised), (self._accepted, accepted)):
            sums[place] = kept * sums[place] + more

    def _take(self, plan: StepPlan, drafted: Drafted) -> None:
        if drafted.confidence is None:
            return
        same = self._opened[plan.rows] <= plan.step
        self._confidence[plan.rows[same]] = drafted.confidence[same]
        self._seen[plan.rows[same]] = plan.step
