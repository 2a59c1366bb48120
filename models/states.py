"""Recurrent states on the device: what a sequence carries from token to token, one slot of a pool each."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from corymb.cache.writes import Int32, StateWrites
from corymb.models.placement import Place


@dataclass(frozen=True, slots=True)
class StateSpec:
    """One tensor of a sequence's state: a layer's convolution window, or its recurrent matrix."""

    shape: tuple[int, ...]
    dtype: torch.dtype | None = None  # None: the model's

    def size_bytes(self, dtype: torch.dtype) -> int:
        """What one state takes in a model of `dtype`."""
        return torch.Size(self.shape).numel() * (self.dtype or dtype).itemsize


class StatePools:
    """Owns a pool for each spec and moves states between slots, in the order of plans."""

    def __init__(self, specs: Sequence[StateSpec], num_slots: int, *, dtype: torch.dtype, place: Place) -> None:
        self.tensors = [place.zeros((num_slots, *spec.shape), spec.dtype or dtype) for spec in specs]
        self._place = place

    def before(self, writes: StateWrites) -> None:
        """What must be done before the step's forward."""
        if len(writes.zero):
            zero = self._place(writes.zero.astype("int64"))
            for tensor in self.tensors:
                tensor.index_fill_(0, zero, 0)
        self._copy(writes.before_from, writes.before_to)

    def after(self, writes: StateWrites) -> None:
        """What must be done behind it."""
        self._copy(writes.after_from, writes.after_to)

    def _copy(self, sources: Int32, targets: Int32) -> None:
        if not len(sources):
            return
        source, target = self._place(sources.astype("int64")), self._place(targets.astype("int64"))
        for tensor in self.tensors:
            tensor.index_copy_(0, target, tensor.index_select(0, source))
