"""Whom a more urgent request may push back into the queue."""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Occupant:
    """A running request as preemption sees it."""

    urgency: int
    entered: int  # place in the queue when it was admitted; the greater, the newer
    frees: int  # tokens that its leaving is expected to give back


def preempt(occupants: Sequence[Occupant], *, urgency: int, threshold: int, tokens: int) -> list[int]:
    """Indices of the occupants that must leave so that `tokens` come free and at least one place does.

    Least urgent first, newest first; each must be less urgent by more than the threshold. Empty when those who may be
    pushed back are not enough: then nobody is.
    """
    order = sorted(range(len(occupants)), key=lambda i: (occupants[i].urgency, -occupants[i].entered))
    chosen: list[int] = []
    for i in order:
        if urgency - occupants[i].urgency <= threshold:
            break
        chosen.append(i)
        tokens -= occupants[i].frees
        if tokens <= 0:
            return chosen
    return []
