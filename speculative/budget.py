"""How many drafts the next step verifies: what the cost model and the confidence of earlier steps say is best."""

from collections import deque
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from corymb.scheduler.plan import Drafted, Int32, Sampled, StepPlan
from corymb.speculative.allocation import LEAST_SURVIVAL, survival
from corymb.speculative.cost_model import CostModel

Float32 = NDArray[np.float32]

_NEVER = -(1 << 40)

LAG = 2  # steps: a budget is known before the step that it is for has drafted, and the one before it has been read
OLDEST = 4  # steps: what was thought of a row's drafts before says nothing of the text where it is now
MEMORY = 0.05  # share of a new step in what is thought of drafts that nobody is sure of
RETRY = 64  # steps without drafts before the next try: what they would be worth is known from drafting alone


@dataclass(frozen=True, slots=True)
class Decision:
    """What a step was planned for."""

    budget: int | None
    step_s: float  # predicted
    tokens: float  # predicted, of all rows


class Budgets:
    """A WindowPolicy: the budget with most tokens a second, τ(K) / T(R, K), K from nothing to everything.

    τ(K) are the rows and the K largest survivals. Rows that it knows nothing of count as drafts did lately.
    """

    def __init__(
        self, num_drafts: int, num_rows: int, costs: CostModel, *, least_gain: float = 0.0, fills_tiers: bool = False
    ) -> None:
        """`least_gain`: less than all is verified only where that promises so much more; `fills_tiers`: a step is
        filled up with drafts to what it computes anyway."""
        self.num_drafts = num_drafts
        self.costs = costs
        self._least_gain = least_gain
        self._fills_tiers = fills_tiers
        self._confidence = np.ones((num_rows, num_drafts), np.float32)
        self._seen = np.full(num_rows, _NEVER, np.int64)  # step that a row's confidence is of
        self._usual = np.ones(num_drafts, np.float32)  # conditional acceptance by place
        self._opened = np.full(num_rows, -1, np.int64)  # step
        self._results: deque[tuple[StepPlan, Drafted]] = deque()
        self._num_idle = 0
        self.last: Decision | None = None

    def open(self, row: int, step: int) -> None:
        """See WindowPolicy."""
        self._opened[row] = step
        self._seen[row] = _NEVER

    def budget(self, step: int, rows: Int32, starts: Int32, most: Int32) -> int | None:
        """See WindowPolicy."""
        self._take_results(step - LAG)
        chosen = self._choose(step, rows, float(starts.mean()), most)
        self._num_idle = 0 if chosen else self._num_idle + 1
        if self._num_idle < RETRY:
            return chosen
        self._num_idle = 0
        return None

    def learn(self, plan: StepPlan, sampled: Sampled) -> None:
        """See WindowPolicy."""
        drafted = sampled.drafted
        if plan.windows is None or drafted is None:
            return
        self._results.append((plan, drafted))
        self._learn_acceptance(sampled.counts - 1, drafted.num_verified)
        num_tokens = plan.num_rows + int(drafted.num_verified.sum())
        self.costs.learn(num_tokens, float(plan.starts.mean()), drafted.verify_s)

    def _take_results(self, last_step: int) -> None:
        while self._results and self._results[0][0].step <= last_step:
            plan, drafted = self._results.popleft()
            if drafted.confidence is None:
                continue
            same = self._opened[plan.rows] <= plan.step
            self._confidence[plan.rows[same]] = drafted.confidence[same]
            self._seen[plan.rows[same]] = plan.step

    def _learn_acceptance(self, accepted: Int32, verified: Int32) -> None:
        for place in range(self.num_drafts):
            tried = (accepted >= place) & (verified > place)
            if tried.any():
                share = float((accepted[tried] > place).mean())
                self._usual[place] += MEMORY * (share - self._usual[place])

    def _choose(self, step: int, rows: Int32, context: float, most: Int32) -> int | None:
        is_known = self._seen[rows] >= step - OLDEST
        confidence = np.where(is_known[:, None], self._confidence[rows], self._usual)
        survivals = survival(confidence)
        possible = (np.arange(self.num_drafts) < most[:, None]) & (survivals >= LEAST_SURVIVAL)
        ordered = -np.sort(-survivals[possible])
        counts = np.arange(len(ordered) + 1)
        tokens = len(rows) + np.concatenate(([0.0], np.cumsum(ordered, dtype=np.float64)))
        seconds = self.costs.step_s(len(rows), counts, context, drafts=True)
        seconds[0] = self.costs.step_s(len(rows), counts[:1], context, drafts=False)[0]
        rates = tokens / seconds
        best = int(np.argmax(rates))
        if best not in {0, len(ordered)} and rates[best] < (1 + self._least_gain) * rates[-1]:
            best = len(ordered)
        if best and self._fills_tiers:
            best = self._filled(len(rows), best, len(ordered))
        self.last = Decision(best, float(seconds[best]), float(tokens[best]))
        return best

    def _filled(self, num_rows: int, budget: int, most: int) -> int:
        """So many drafts as the step's tier has room for."""
        (tier,) = self.costs.tier(np.array([num_rows + budget])).tolist()
        return min(most, max(budget, int(tier) - num_rows))
