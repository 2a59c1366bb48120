"""Where a model's tensors come from while it is built."""

from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Protocol

import torch
from safetensors import safe_open
from torch import Tensor

from corymb.models.headers import Stored
from corymb.models.inventory import Shapes

Progress = Callable[[int], None]  # bytes read since the last call


class Weights(Protocol):
    """Gives each tensor once, by name, on the model's device and in the type it has. On a CPU it may be a view of a
    file: who keeps it keeps a copy."""

    def take(self, name: str) -> Tensor:
        """The tensor of that name."""
        ...


class CheckpointWeights:
    """Reads tensors from safetensors files. Owns the open files: use it as a context manager."""

    def __init__(self, stored: Stored, device: torch.device, on_progress: Progress) -> None:
        self._stored = stored
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
        tensor: Tensor = self._files[stored.file].get_tensor(stored.stored_name)  # type: ignore[no-untyped-call]
        tensor = tensor.to(self._device)
        self._on_progress(stored.size_bytes)
        return tensor


class DummyWeights:
    """Invents tensors from their shapes, always the same for the same seed."""

    def __init__(self, shapes: Shapes, dtype: torch.dtype, device: torch.device, *, seed: int = 0) -> None:
        self._shapes = shapes
        self._dtype = dtype
        self._device = device
        self._generator = torch.Generator(device).manual_seed(seed)

    def take(self, name: str) -> Tensor:
        """Norms are near one and products keep the size of what flows through them."""
        shape = self._shapes[name]
        tensor = torch.empty(shape, dtype=self._dtype, device=self._device)
        spread = shape[-1] ** -0.5 if len(shape) > 1 else 0.02
        tensor.uniform_(-spread, spread, generator=self._generator)
        return tensor.add_(1) if name.endswith("norm.weight") else tensor
