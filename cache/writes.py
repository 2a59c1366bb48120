"""Changes of host tables that a device copy has to follow."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Int32 = NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class TableWrites:
    """Page-table entries that change for other reasons than a step's new tokens: prefix hits, and duplicates that gave
    way to the tree's own slots. Flat: entry i says table[rows[i], positions[i]] = slots[i]."""

    rows: Int32
    positions: Int32
    slots: Int32

    @staticmethod
    def none() -> "TableWrites":
        """No change."""
        empty = np.empty(0, np.int32)
        return TableWrites(empty, empty, empty)


@dataclass(frozen=True, slots=True)
class SlidingWrites:
    """Entries of the full-to-sliding slot map that change: map[full[i]] = sliding[i]; 0 means no sliding slot."""

    full: Int32
    sliding: Int32
