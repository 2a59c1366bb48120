"""The pool of sliding-window layers and its map from full slots."""

import numpy as np

from corymb.cache.slots import Int32, Slots, pages_of
from corymb.cache.writes import SlidingWrites


class SlidingPool:
    """Owns the sliding pages and says which full page each is the twin of. Callers name full pages or slots only, so
    that a twin cannot be freed twice. 0 stands for no twin."""

    def __init__(self, num_tokens: int, page_size: int, num_full_pages: int) -> None:
        self.slots = Slots(num_tokens, page_size)
        self.twins = np.zeros(num_full_pages + 1, np.int32)  # by full page
        self._page_size = page_size
        self._changed: list[Int32] = []

    def of(self, slots: Int32) -> Int32:
        """The twin of each of these full slots; a slot of page 0 for one without."""
        size = np.int32(self._page_size)
        return self.twins[slots] if size == 1 else self.twins[slots // size] * size + slots % size

    def pair(self, full_pages: Int32) -> None:
        """Gives each of these full pages a twin; the caller has made sure that so many are free."""
        self.twins[full_pages] = self.slots.allocate(len(full_pages))
        self._changed.append(full_pages)

    def free(self, full_pages: Int32) -> None:
        """Frees the twins of those of these pages that have one."""
        if not len(full_pages):
            return
        twins = self.twins[full_pages]
        if not twins.all():
            full_pages, twins = full_pages[twins > 0], twins[twins > 0]
        self.slots.free(twins)
        self.twins[full_pages] = 0
        self._changed.append(full_pages)

    def move(self, source: Int32, target: Int32) -> None:
        """Makes the twins of the `source` slots those of the `target` slots, which have none."""
        source, target = pages_of(source, self._page_size), pages_of(target, self._page_size)
        assert not self.twins[target].any(), "the target has twins of its own"
        assert self.twins[source].all(), "the source has no twins"
        self.twins[target] = self.twins[source]
        self.twins[source] = 0
        self._changed += (source, target)

    def take_writes(self) -> SlidingWrites:
        """Returns every entry that changed since the last call, as it is now: a slot named twice has one value."""
        pages = np.concatenate(self._changed) if self._changed else np.empty(0, np.int32)
        self._changed = []
        twins = self.twins[pages]
        if self._page_size == 1:
            return SlidingWrites(pages, twins)
        offsets = np.arange(self._page_size, dtype=np.int32)
        full = pages[:, None] * np.int32(self._page_size) + offsets
        sliding = np.where(twins[:, None] > 0, twins[:, None] * np.int32(self._page_size) + offsets, np.int32(0))
        return SlidingWrites(full.ravel(), sliding.ravel())
