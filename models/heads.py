"""Products that each head does with weights of its own."""

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from corymb.models.linear import Linear, MakeLinear


class HeadLinear(Protocol):
    """Loaded weights [num_heads, outputs, inputs]."""

    def __call__(self, x: Tensor) -> Tensor:
        """Returns [T, num_heads, outputs] of x [T, num_heads, inputs]."""
        ...


class MakeHeadLinear(Protocol):
    """Makes a product out of weights [num_heads, outputs, inputs]."""

    def __call__(self, weights: Tensor, /) -> HeadLinear:
        """Keeps the weights, in a layout of its own."""
        ...


@dataclass(frozen=True, slots=True)
class SeparateHeads:
    """Makes a product for each head. A row's result is the same bits whatever rows are beside it, if a product's is."""

    make_linear: MakeLinear

    def __call__(self, weights: Tensor, /) -> HeadLinear:
        """See MakeHeadLinear."""
        return _SeparateHeads([self.make_linear(weight.contiguous(), None) for weight in weights])


class _SeparateHeads:
    def __init__(self, products: list[Linear]) -> None:
        self._products = products

    def __call__(self, x: Tensor) -> Tensor:
        """See HeadLinear."""
        return torch.stack([product(x[:, head].contiguous()) for head, product in enumerate(self._products)], dim=1)


@dataclass(frozen=True, slots=True)
class BatchedHeads:
    """Makes one batched product of torch for all heads."""

    dtype: torch.dtype

    def __call__(self, weights: Tensor, /) -> HeadLinear:
        """See MakeHeadLinear."""
        return _BatchedHeads(weights.to(self.dtype).transpose(1, 2).contiguous())


class _BatchedHeads:
    def __init__(self, weights: Tensor) -> None:
        self._weights = weights

    def __call__(self, x: Tensor) -> Tensor:
        """See HeadLinear."""
        return torch.bmm(x.transpose(0, 1), self._weights).transpose(0, 1)
