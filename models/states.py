"""Recurrent states on the device: what a sequence carries from token to token, one slot of a pool each."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from corymb.cache.writes import Int32, StateWrites
from corymb.models.placement import Place

if TYPE_CHECKING:
    from corymb.models.records import Records

ALIGNMENT = 64  # numbers: kernels read several at once


@dataclass(frozen=True, slots=True)
class StateSpec:
    """One tensor of a sequence's state: a layer's convolution window, or its recurrent matrix."""

    shape: tuple[int, ...]
    dtype: torch.dtype | None = None  # None: the model's

    @property
    def num_elements(self) -> int:
        """Of one state."""
        return torch.Size(self.shape).numel()

    def size_bytes(self, dtype: torch.dtype) -> int:
        """What one state takes in a model of `dtype`."""
        return self.num_elements * (self.dtype or dtype).itemsize


class StatePools:
    """Owns a pool for each type, in which all states of a slot lie together, and moves states between slots, in the
    order of plans: a launch or two move them all."""

    def __init__(
        self,
        specs: Sequence[StateSpec],
        num_slots: int,
        *,
        dtype: torch.dtype,
        place: Place,
        records: "Records | None" = None,
    ) -> None:
        """`tensors`: [num_slots, *shape] of each spec, parts of the pools. `records`: of a server that drafts."""
        self.records = records
        kinds = [spec.dtype or dtype for spec in specs]
        sizes = dict.fromkeys(kinds, 0)
        begins = []
        for spec, kind in zip(specs, kinds, strict=True):
            begins.append(sizes[kind])
            sizes[kind] += -(-spec.num_elements // ALIGNMENT) * ALIGNMENT
        self._pools = {kind: place.zeros((num_slots, size), kind) for kind, size in sizes.items()}
        self.tensors = [
            self._pools[kind][:, begin : begin + spec.num_elements].view(num_slots, *spec.shape)
            for spec, kind, begin in zip(specs, kinds, begins, strict=True)
        ]
        self._place = place

    @property
    def pools(self) -> list[torch.Tensor]:
        """The pools, [num_slots, numbers of a slot] each."""
        return list(self._pools.values())

    def before(self, writes: StateWrites) -> None:
        """What must be done before the step's forward."""
        if len(writes.zero):
            zero = self._place(writes.zero.astype("int64"))
            for pool in self._pools.values():
                pool.index_fill_(0, zero, 0)
        self._copy(writes.before_from, writes.before_to)

    def after(self, writes: StateWrites) -> None:
        """What must be done behind it."""
        self._copy(writes.after_from, writes.after_to)

    def _copy(self, sources: Int32, targets: Int32) -> None:
        if not len(sources):
            return
        source, target = self._place(sources.astype("int64")), self._place(targets.astype("int64"))
        for pool in self._pools.values():
            pool.index_copy_(0, target, pool.index_select(0, source))
