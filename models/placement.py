"""How arrays of the host reach the device, and device tensors that follow what the host writes."""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor


@dataclass(frozen=True, slots=True)
class Place:
    """Puts host arrays on one device. On a CPU the tensor shares the array's memory."""

    device: torch.device

    def __call__(self, array: NDArray[Any]) -> Tensor:
        """The array as a tensor of the device."""
        tensor = torch.from_numpy(array)
        if self.device.type == "cuda":
            # From pageable memory a copy may wait for everything before it.
            return tensor.pin_memory().to(self.device, non_blocking=True)
        return tensor

    def zeros(self, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        """A tensor of zeros."""
        if self.device.type != "cpu":
            return torch.zeros(shape, dtype=dtype, device=self.device)
        # numpy gets zero pages from the operating system, which cost neither memory nor time until they are written.
        num_bytes = math.prod(shape) * dtype.itemsize
        return torch.from_numpy(np.zeros(num_bytes, np.uint8)).view(dtype).view(shape)


class Mirror:
    """Owns an int32 device tensor, at first zero, whose entries the host sets."""

    def __init__(self, shape: tuple[int, ...], place: Place) -> None:
        self._place = place
        self.tensor = place.zeros(shape, torch.int32)
        self._flat: Tensor = self.tensor.view(-1)
        self._host: NDArray[np.int32] | None = self._flat.numpy() if place.device.type == "cpu" else None

    def write(self, at: NDArray[np.int64], values: NDArray[np.int32]) -> None:
        """Sets flat entries. Of several writes to one entry the last holds: a slot may be freed and reused at once."""
        if self._host is not None:
            self._host[at] = values
            return
        unique, last = np.unique(at[::-1], return_index=True)
        self._flat[self._place(unique)] = self._place(values[::-1][last])
