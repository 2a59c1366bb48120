"""Changes of host tables that a device copy has to follow."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

Int32 = NDArray[np.int32]
Rows = NDArray[np.uint8]  # [slots, bytes of a slot in all of a pool's tensors]
PoolName = Literal["full", "sliding", "recurrent"]


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
class Landmarks:
    """Where states are wanted of rows that come by without anybody knowing when."""

    positions: Int32  # [R], tokens that the wanted state has seen; 0: none is wanted, or it was taken already
    slots: Int32  # [R], where it goes to


@dataclass(frozen=True, slots=True)
class StateWrites:
    """What a step does to recurrent states, one slot each; slot 0 is padding.

    In this order: clear `zero`, copy `before_from[i]` to `before_to[i]`, then the forward, in which row r goes on from
    the state in slots[r] and leaves the state after its last token there, then copy `after_from[i]` to `after_to[i]`.

    With `landmarks`, tokens of the step may be taken back. Then row r leaves in slots[r] the state before its first
    token of this step: what its last such step gave and kept is taken through the state first. Where that comes by
    landmarks.positions[r], the state there is copied to landmarks.slots[r].
    """

    slots: Int32  # [R], the working state of each row of the plan
    zero: Int32
    before_from: Int32  # may name a slot twice: two rows start from one state
    before_to: Int32
    after_from: Int32
    after_to: Int32
    landmarks: Landmarks | None = None

    @property
    def written(self) -> Int32:
        """Every slot that the step writes to."""
        passed = self.landmarks.slots if self.landmarks else self.zero[:0]
        return np.concatenate((self.slots, self.zero, self.before_to, self.after_to, passed))

    @staticmethod
    def only(slots: Int32, landmarks: Landmarks | None = None) -> "StateWrites":
        """Rows that go on from the states in `slots`, and nothing else."""
        empty = np.empty(0, np.int32)
        return StateWrites(slots, empty, empty, empty, empty, empty, landmarks)


@dataclass(frozen=True, slots=True)
class Carried:
    """What a pool of one tier has in the slots `source` is wanted in the slots `target` of another's."""

    pool: PoolName
    source: Int32
    target: Int32


@dataclass(frozen=True, slots=True)
class HostCopy:
    """Contents of a pool's slots go from the device's to the host's, or back."""

    pool: PoolName
    to_host: bool
    source: Int32
    target: Int32
    contents: Rows | None = None  # instead of the host's pool: what was read from storage; `source` are its rows


@dataclass(frozen=True, slots=True)
class HostCopies:
    """Copies that are done in this order, behind those of all lower numbers, and beside the device's other work.

    They begin when the steps planned before are computed. A step's own forward comes behind those numbered up to
    `awaited`, which bring what it reads, or touch what it overwrites; the others it neither needs nor disturbs.
    """

    number: int = 0  # 0: there is no second tier
    copies: Sequence[HostCopy] = ()
    awaited: int = 0  # 0: none that may be on its way


@dataclass(frozen=True, slots=True)
class SlidingWrites:
    """Entries of the full-to-sliding slot map that change: map[full[i]] = sliding[i]; 0 means no sliding slot."""

    full: Int32
    sliding: Int32
