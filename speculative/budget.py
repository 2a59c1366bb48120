"""How many drafts the next step verifies: what the cost model and the confidence of earlier steps say is best."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from corymb.scheduler.plan import Drafted, Int32, Sampled, StepPlan
from corymb.speculative.account import Account
from corymb.speculative.cost_model import CostModel, Took
from corymb.speculative.outlook import Outlook

Float64 = NDArray[np.float64]

# Steps that draft before one that does not, by which they are judged: soon at first, then twice as many each time.
FIRST_WITHOUT_PLAIN = 4
MOST_WITHOUT_PLAIN = 128
TRY_SHARE = 0.05  # of a step without drafts, that verifying a try's drafts may cost beside what drafting them does


@dataclass(frozen=True, slots=True)
class Decision:
    """What a step was planned for."""

    budget: int | None
    step_s: float  # predicted
    tokens: float  # predicted, of all rows


@dataclass(frozen=True, slots=True)
class Forecast:
    """What steps of the same rows would give, by how many drafts they verify: entry 0 drafts nothing."""

    tokens: Float64  # [N + 1]
    seconds: Float64  # [N + 1]
    drafting_s: float  # of the seconds of those that draft

    def best(self, least_gain: float) -> int:
        """The number of drafts with the most tokens a second. Less than all of them only where that promises
        `least_gain` more."""
        rates = self.tokens / self.seconds
        best, most = int(np.argmax(rates)), len(rates) - 1
        return most if 0 < best < most and rates[best] < (1 + least_gain) * rates[-1] else best

    def small(self) -> int:
        """A number of drafts that tells most of what is worth knowing, and costs little beside the drafting."""
        allowed = self.seconds[0] * (1 + TRY_SHARE) + 2 * self.drafting_s
        affordable = int((np.maximum.accumulate(self.seconds) <= allowed).sum()) - 1
        return min(max(affordable, 1), len(self.seconds) - 1)

    def risk_s(self, budget: int) -> float:
        """What is lost if none of so many drafts is accepted."""
        return float(self.seconds[budget] - self.seconds[0])


class Budgets:
    """A WindowPolicy: the budget with most tokens a second, τ(K) / T(R, K), K from nothing to everything.

    τ(K) are the rows and the K largest survivals. Where nothing is best, drafts are tried with a few now and then, and
    where the forecast is too good to be true, an `Account` of what came of it stops them.
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
        self._outlook = Outlook(num_drafts, num_rows)
        self._account = Account()
        self._num_without_plain = 0
        self._most_without_plain = FIRST_WITHOUT_PLAIN
        self._decisions: dict[int, Decision] = {}  # by step, of those in flight
        self.last: Decision | None = None

    def open(self, row: int, step: int) -> None:
        """See WindowPolicy."""
        self._outlook.open(row, step)

    def budget(self, step: int, rows: Int32, starts: Int32, most: Int32) -> int:
        """See WindowPolicy."""
        forecast = self._forecast(step, rows, float(starts.mean()), most)
        chosen = self._permitted(step, forecast, forecast.best(self._least_gain), len(rows))
        self._num_without_plain = self._num_without_plain + 1 if chosen else 0
        self.last = Decision(chosen, float(forecast.seconds[chosen]), float(forecast.tokens[chosen]))
        self._decisions[step] = self.last
        return chosen

    def learn(self, plan: StepPlan, sampled: Sampled) -> float | None:
        """See WindowPolicy."""
        if plan.windows is None:
            return None
        expected = self._decisions.get(plan.step)
        self._decisions = {step: kept for step, kept in self._decisions.items() if step > plan.step}
        drafted, context = sampled.drafted, float(plan.starts.mean())
        if drafted is None:
            self.costs.learn(plan.num_rows, 0, context, Took(None, sampled.forward_s))
            self._account.plain(plan.step, sampled.forward_s)
            return None if expected is None or expected.budget else expected.step_s - self.costs.overhead_s
        self.costs.learn(
            plan.num_rows, int(drafted.num_verified.sum()), context, Took(drafted.draft_s, drafted.verify_s)
        )
        self._outlook.learn(plan, sampled, drafted)
        self._settle(plan, sampled, drafted)
        return None if expected is None else expected.step_s - self.costs.overhead_s

    def _forecast(self, step: int, rows: Int32, context: float, most: Int32) -> Forecast:
        possible = np.arange(self.num_drafts) < most[:, None]
        ordered = -np.sort(-self._outlook.survivals(step, rows)[possible])
        tokens = len(rows) + np.concatenate(([0.0], np.cumsum(ordered, dtype=np.float64)))
        seconds = self.costs.step_s(len(rows), np.arange(len(tokens)), context, drafts=True)
        plain_s = float(self.costs.step_s(len(rows), np.arange(1), context, drafts=False)[0])
        drafting_s = float(seconds[0]) - plain_s
        seconds[0] = plain_s
        return Forecast(tokens, seconds, drafting_s)

    def _permitted(self, step: int, forecast: Forecast, best: int, num_rows: int) -> int:
        """The best number of drafts, or none where it is not to be trusted, or a few where none seems best."""
        if not best:
            few = forecast.small()
            return few if self._account.lets_try(step, forecast.risk_s(few)) else 0
        if self._num_without_plain >= self._most_without_plain:
            self._most_without_plain = min(2 * self._most_without_plain, MOST_WITHOUT_PLAIN)
            return 0
        if self._fills_tiers:
            best = self._filled(num_rows, best, len(forecast.tokens) - 1)
        return best if self._account.lets(step, forecast.risk_s(best), float(forecast.seconds[0])) else 0

    def _filled(self, num_rows: int, budget: int, most: int) -> int:
        """So many drafts as the step's tier has room for."""
        (tier,) = self.costs.tier(np.array([num_rows + budget])).tolist()
        return min(most, max(budget, int(tier) - num_rows))

    def _settle(self, plan: StepPlan, sampled: Sampled, drafted: Drafted) -> None:
        """Compares a step that drafted with steps that would have said as much without."""
        num_rows, context, allowed = plan.num_rows, float(plan.starts.mean()), drafted.allowed
        plain_s = float(self.costs.step_s(num_rows, np.arange(1), context, drafts=False)[0])
        took_s = self.costs.overhead_s + drafted.draft_s + drafted.verify_s
        if not np.array_equal(allowed, drafted.num_verified):  # what is verified to be looked at only, is not paid for
            took_s = float(self.costs.step_s(num_rows, allowed.sum(keepdims=True), context, drafts=True)[0])
        self._account.drafted(plan.step, int(sampled.counts.sum()) / num_rows * plain_s - took_s, plain_s)
