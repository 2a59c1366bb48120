"""Where a prompt may be cut into chunks. Numbers only."""

import math
from dataclasses import dataclass

import numpy as np

from corymb.cache.config import CacheConfig
from corymb.cache.key import Key


@dataclass(frozen=True, slots=True)
class Cuts:
    """A cut ends a page. With recurrent state it ends, where that is possible, where a snapshot is due: the tree keeps
    states of chunk ends only there; or else on the model's grid.

    `interval` is a multiple of `grid`, and that of `page`.
    """

    page: int
    grid: int
    interval: int

    @staticmethod
    def of(config: CacheConfig) -> "Cuts":
        """The cuts that a cache asks for."""
        page = config.page_size
        if not config.num_states:
            return Cuts(page, page, page)
        return Cuts(page, math.lcm(page, config.state_grid), config.state_interval)

    def floor(self, start: int, stop: int) -> int:
        """The best end of a chunk that begins at `start` and may reach `stop` at most; `start` when there is none."""
        for step in (self.interval, self.grid, self.page):
            end = stop - stop % step
            if end > start:
                return end
        return start

    def common(self, one: Key, other: Key, limit: int) -> int:
        """How many tokens two sequences have in common from their beginnings, `limit` at most, down to where a hit may
        end."""
        if one.namespace != other.namespace:
            return 0
        length = min(len(one.token_ids), len(other.token_ids), limit)
        differs = np.flatnonzero(one.token_ids[:length] != other.token_ids[:length])
        shared = int(differs[0]) if len(differs) else length
        return shared - shared % self.grid

    def narrower(self, start: int, width: int) -> int:
        """Half of `width` or less, at least a page, so that start + width is a cut; 0 when it cannot shrink."""
        if width <= self.page:
            return 0
        return max(self.floor(start, start + width // 2) - start, self.page)


def stop_at(branch: int, start: int, stop: int) -> int:
    """The end of a piece [start, stop) that must not run over `branch`, where the tree lacks a state; 0: nowhere."""
    return branch if start < branch < stop else stop
