"""The free list of one pool."""

import numpy as np
import pytest

from corymb.cache.slots import Slots, pages_of


def test_page_0_is_never_handed_out() -> None:
    slots = Slots(12, 4)
    assert slots.num_pages == 2
    assert slots.num_tokens == slots.num_free_tokens == 8
    assert slots.allocate(2).tolist() == [1, 2]
    assert slots.num_free == 0


def test_pages_freed_last_are_reused_first_in_their_order() -> None:
    slots = Slots(10, 1)
    pages = slots.allocate(6)
    slots.free(pages[4:])
    slots.free(pages[:2])
    assert slots.allocate(3).tolist() == [1, 2, 5]


def test_double_free_is_noticed() -> None:
    slots = Slots(10, 1)
    pages = slots.allocate(2)
    slots.free(pages)
    with pytest.raises(AssertionError, match="freed twice"):
        slots.free(pages[:1])


def test_allocating_too_much_is_noticed_and_changes_nothing() -> None:
    slots = Slots(4, 1)
    with pytest.raises(AssertionError, match="4 pages wanted, 3 free"):
        slots.allocate(4)
    assert slots.num_free == 3


def test_pages_of_whole_pages_of_slots() -> None:
    assert pages_of(np.array([8, 9, 10, 11, 4, 5, 6, 7], np.int32), 4).tolist() == [2, 1]
    assert pages_of(np.array([7, 3], np.int32), 1).tolist() == [7, 3]
