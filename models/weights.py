"""Where a model's tensors come from while it is built."""

from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Protocol

import torch
from safetensors import safe_open
from torch import Tensor

from corymb.models.headers import Stored, StoredTensor
from corymb.models.inventory import Shapes
from corymb.models.share import Cut

Progress = Callable[[int], None]  # bytes read since the last call
Cuts = Callable[[str], Cut | None]  # by name: what is taken of a tensor; None for all


def nothing_cut(_: str) -> None:
    """Takes every tensor whole."""


class Weights(Protocol):
    """Gives each tensor once, by name, on the model's device and in the type it has: this rank's part of it. On a CPU
    it may be a view of a file: who keeps it keeps a copy."""

    def take(self, name: str) -> Tensor:
        """The tensor of that name."""
        ...


class CheckpointWeights:
    """Reads tensors from safetensors files: of those that are cut, this rank's part alone. Owns the open files: use it
    as a context manager."""

    def __init__(
        self, stored: Stored, device: torch.device, on_progress: Progress, *, cuts: Cuts = nothing_cut
    ) -> None:
        self._stored = stored
        self._cuts = cuts
        self._device = device
        self._on_progress = on_progress
        self._files: dict[Path, safe_open] = {}
        self._stack = ExitStack()

    def __enter__(self) -> "CheckpointWeights":
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def take(self, name: str) -> Tensor:
        """See Weights."""
        stored = self._stored[name]
        if stored.file not in self._files:
            self._files[stored.file] = self._stack.enter_context(safe_open(stored.file, framework="pt"))
        file, cut = self._files[stored.file], self._cuts(name)
        tensor = _read(file, stored.stored_name, cut).to(self._device)
        self._on_progress(size_bytes(stored, cut))
        return tensor


def size_bytes(stored: StoredTensor, cut: Cut | None) -> int:
    """What is read of a stored tensor."""
    if cut is None:
        return stored.size_bytes
    return stored.size_bytes // max(1, stored.shape[cut.axis]) * cut.num_kept


def _read(file: safe_open, name: str, cut: Cut | None) -> Tensor:
    if cut is None:
        tensor: Tensor = file.get_tensor(name)  # type: ignore[no-untyped-call]
        return tensor
    lazy = file.get_slice(name)  # type: ignore[no-untyped-call]
    if not cut.num_kept:  # the format's reader has no empty slices
        first: Tensor = lazy[:1]
        return first.new_zeros(cut.shape(tuple(lazy.get_shape())))
    pieces: list[Tensor] = [lazy[(*[slice(None)] * cut.axis, piece)] for piece in cut.pieces]
    return filled_up(pieces[0] if len(pieces) == 1 else torch.cat(pieces, dim=cut.axis), cut)


def filled_up(part: Tensor, cut: Cut) -> Tensor:
    """The part with the zeros that it is filled up with."""
    if part.shape[cut.axis] == cut.length:
        return part
    whole = part.new_zeros(cut.shape(tuple(part.shape)))
    whole.narrow(cut.axis, 0, part.shape[cut.axis]).copy_(part)
    return whole


class DummyWeights:
    """Invents tensors from their shapes, always the same for the same seed: a part is cut from the whole."""

    def __init__(
        self,
        shapes: Shapes,
        dtype: torch.dtype,
        device: torch.device,
        *,
        seed: int = 0,
        cuts: Cuts = nothing_cut,
    ) -> None:
        self._shapes = shapes
        self._cuts = cuts
        self._dtype = dtype
        self._device = device
        self._generator = torch.Generator(device).manual_seed(seed)

    def take(self, name: str) -> Tensor:
        """Norms are near one and products keep the size of what flows through them."""
        shape = self._shapes[name]
        tensor = torch.empty(shape, dtype=self._dtype, device=self._device)
        spread = shape[-1] ** -0.5 if len(shape) > 1 else 0.02
        tensor.uniform_(-spread, spread, generator=self._generator)
        if name.endswith("norm.weight"):
            tensor.add_(1)
        cut = self._cuts(name)
        if cut is None:
            return tensor
        pieces = [tensor.narrow(cut.axis, piece.start, piece.stop - piece.start) for piece in cut.pieces]
        return filled_up(torch.cat(pieces, dim=cut.axis), cut).clone(memory_format=torch.contiguous_format)
