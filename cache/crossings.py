"""Copies between device and host that may be on their way, by the slots of the device that they touch."""

from collections.abc import Mapping

import numpy as np

from corymb.cache.sliding_pool import SlidingPool
from corymb.cache.slots import Int32
from corymb.cache.writes import HostCopy, PoolName

Touched = Mapping[PoolName, Int32]  # slots, by pool


class Crossings:
    """Numbers lots of copies from 1 on, and says which lot a step must come behind.

    Lots are done in their order. So the last that touches a slot is all there is to remember of it.
    """

    def __init__(self, sizes: Mapping[PoolName, int]) -> None:
        """`sizes`: slots of the device's pools."""
        self.num_taken = 0
        self.num_done = 0  # as far as anybody knows
        self._last_copy = self._last_fill = 0  # lots
        self._fills = {pool: np.zeros(size, np.int32) for pool, size in sizes.items()}  # by slot
        self._reads = {pool: np.zeros(size, np.int32) for pool, size in sizes.items()}

    def note(self, copy: HostCopy) -> None:
        """A copy of the next lot."""
        self._last_copy = self.num_taken + 1
        if copy.to_host:
            self._reads[copy.pool][copy.source] = self.num_taken + 1
        else:
            self._last_fill = self.num_taken + 1
            self._fills[copy.pool][copy.target] = self.num_taken + 1

    def before(self, reads: Touched, writes: Touched) -> int:
        """The lot that a step must come behind that reads and writes these slots; 0 where none is on its way."""
        if self._last_copy <= self.num_done:
            return 0
        numbers = [_last(self._fills, reads), _last(self._fills, writes), _last(self._reads, writes)]
        return max(numbers) if max(numbers) > self.num_done else 0

    @property
    def next_fill(self) -> int:
        """The number of the next lot, if something of it goes to the device; else 0."""
        return self._last_fill if self._last_fill > self.num_taken else 0

    @property
    def any_filling(self) -> bool:
        """Whether something may be on its way to the device."""
        return self._last_fill > self.num_done


def touched_by(slots: Int32, states: Int32 | None, sliding_pool: SlidingPool | None) -> Touched:
    """What a step touches that works in these full slots, which have twins in the sliding pool, and these states."""
    touched: dict[PoolName, Int32] = {"full": slots}
    if sliding_pool:
        touched["sliding"] = sliding_pool.of(slots)
    if states is not None:
        touched["recurrent"] = states
    return touched


def _last(lots: Touched, slots: Touched) -> int:
    return max((int(lots[pool][touched].max(initial=0)) for pool, touched in slots.items()), default=0)
