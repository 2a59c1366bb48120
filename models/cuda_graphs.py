"""Captured decode steps, one graph for each tier: a number of tokens that smaller steps are filled up to."""

from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from corymb.models.cuda_device import Device


def tiers(most: int) -> list[int]:
    """Token counts to capture: close together where steps are short, so that padding costs less than a tenth."""
    wanted = [1, 2, 4, *range(8, 129, 8), *range(144, 257, 16), *range(288, 513, 32), *range(576, most + 64, 64)]
    smaller = [tier for tier in wanted if tier < most]
    return [*smaller, most] if most > 0 else []


class Step(Protocol):
    """The work of one tier."""

    def prepare(self) -> None:
        """Puts a harmless step in the tier's inputs and plans it; not captured."""
        ...

    def run(self) -> None:
        """Queues the step's work."""
        ...


@dataclass(frozen=True, slots=True)
class Tier:
    """A captured step and what it reads and writes."""

    num_tokens: int
    replay: Callable[[], None]


class Graphs:
    """Owns the captured graphs. All share one memory pool, so the largest is captured first."""

    def __init__(self, device: Device, num_tokens: Sequence[int], step_of: Callable[[int], Step]) -> None:
        self._tiers: dict[int, Tier] = {}
        for tier in sorted(num_tokens, reverse=True):
            step = step_of(tier)
            step.prepare()
            step.run()  # kernels are compiled and loaded: neither may happen while a graph is captured
            device.synchronize()
            self._tiers[tier] = Tier(tier, device.capture(step.run))
        self._order = sorted(self._tiers)

    def fit(self, num_tokens: int) -> int | None:
        """The smallest tier that holds so many tokens; None when none does."""
        index = bisect_left(self._order, num_tokens)
        return self._order[index] if index < len(self._order) else None

    def replay(self, tier: int) -> None:
        """Queues the tier's work on what its inputs hold now."""
        self._tiers[tier].replay()
