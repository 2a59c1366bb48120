"""A step on its way."""

from collections.abc import Sequence
from dataclasses import dataclass

from corymb.scheduler.plan import StepPlan
from corymb.scheduler.request import Request


@dataclass(frozen=True, slots=True)
class InFlight:
    """A plan whose results are not known yet, and the requests that its rows belong to."""

    plan: StepPlan
    requests: Sequence[Request]
