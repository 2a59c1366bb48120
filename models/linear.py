"""Products with weights."""

from collections.abc import Callable
from typing import Protocol

import torch.nn.functional as F  # noqa: N812
from torch import Tensor


class Linear(Protocol):
    """A loaded weight [outputs, inputs] and, maybe, a bias."""

    def __call__(self, x: Tensor) -> Tensor:
        """Returns x @ weight.T + bias of x [N, inputs]."""
        ...


MakeLinear = Callable[[Tensor, Tensor | None], Linear]  # weight [outputs, inputs], bias [outputs]


class PlainLinear:
    """Whatever torch does, on any device and in any type."""

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        self._weight = weight
        self._bias = bias

    def __call__(self, x: Tensor) -> Tensor:
        """See Linear."""
        return F.linear(x, self._weight, self._bias)
