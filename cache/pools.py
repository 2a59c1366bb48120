"""The pools of one memory, and what a tree's decisions do to them."""

import numpy as np

from corymb.cache.actions import Actions
from corymb.cache.sliding_pool import SlidingPool
from corymb.cache.slots import Int32, Slots, pages_of


class Pools:
    """Full slots, their sliding twins where there are any, and states where there are any."""

    def __init__(self, full: Slots, sliding: SlidingPool | None, states: Slots | None) -> None:
        self.full = full
        self.sliding = sliding
        self.states = states
        self.page_size = full.page_size

    def free(self) -> dict[str, int]:
        """Free tokens, or states, by pool."""
        free = {"full": self.full.num_free_tokens}
        if self.sliding:
            free["sliding"] = self.sliding.slots.num_free_tokens
        if self.states:
            free["recurrent"] = self.states.num_free
        return free

    def expand(self, pages: Int32) -> Int32:
        """The slots of these pages."""
        size = np.int32(self.page_size)
        return pages if size == 1 else (pages[:, None] * size + np.arange(size, dtype=np.int32)).ravel()

    def twins_of(self, slots: Int32) -> Int32:
        """The sliding slots of these full slots, which are whole pages and have twins."""
        assert self.sliding is not None
        return self.expand(self.sliding.twins[pages_of(slots, self.page_size)])

    def execute(self, actions: Actions) -> None:
        """Does what the tree has decided."""
        for move in actions.moves:
            assert self.sliding is not None
            self.sliding.move(move.source, move.target)
        frees = {pool: np.concatenate(slots) for pool, slots in actions.frees.items()}
        if self.sliding and "sliding" in frees:
            self.sliding.free(pages_of(frees["sliding"], self.page_size))
        if self.states and "recurrent" in frees:
            self.states.free(frees["recurrent"])
        if "full" in frees:
            self.full.free(pages_of(frees["full"], self.page_size))
