"""The pages of one pool."""

import numpy as np
from numpy.typing import NDArray

Int32 = NDArray[np.int32]


class Slots:
    """Owns the free list of one pool. Whoever allocates pages gives each back once.

    Page p holds the slots p · page_size … p · page_size + page_size - 1. Page 0 is never handed out. Reuse is last in,
    first out, so the same calls always give the same pages.
    """

    __slots__ = ("_num_free", "_stack", "_used", "num_pages", "page_size")

    def __init__(self, num_tokens: int, page_size: int) -> None:
        self.page_size = page_size
        self.num_pages = num_tokens // page_size - 1
        self._stack = np.arange(self.num_pages, 0, -1, dtype=np.int32)
        self._num_free = self.num_pages
        self._used = np.zeros(self.num_pages + 1, np.bool_)

    @property
    def num_free(self) -> int:
        """Free pages."""
        return self._num_free

    @property
    def num_tokens(self) -> int:
        """Tokens that all usable pages hold."""
        return self.num_pages * self.page_size

    @property
    def num_free_tokens(self) -> int:
        """Tokens that the free pages hold."""
        return self._num_free * self.page_size

    def allocate(self, count: int) -> Int32:
        """Returns `count` page ids; the caller has made sure that so many are free."""
        assert count <= self._num_free, f"{count} pages wanted, {self._num_free} free"
        self._num_free -= count
        pages = self._stack[self._num_free : self._num_free + count][::-1].copy()
        self._used[pages] = True
        return pages

    def free(self, pages: Int32) -> None:
        """Takes back allocated pages."""
        if not len(pages):
            return
        assert self._used[pages].all(), "a page was freed twice"
        self._used[pages] = False
        self._stack[self._num_free : self._num_free + len(pages)] = pages[::-1]
        self._num_free += len(pages)

    def free_pages(self) -> Int32:
        """Returns a copy of the free page ids, for checks."""
        return self._stack[: self._num_free].copy()


def pages_of(slots: Int32, page_size: int) -> Int32:
    """Returns the page ids of `slots`, which are whole pages one after another."""
    return slots if page_size == 1 else slots[::page_size] // np.int32(page_size)
