"""Products on a GPU: ours for few rows, where what stands around them is fused in, and the library's for many."""

from dataclasses import dataclass

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from corymb.kernels.operations import Activation, Norm
from corymb.kernels.triton_jit import Launch
from corymb.kernels.triton_linear import fits, multiply


@dataclass(frozen=True, slots=True)
class CudaLinears:
    """Makes products. `fused_rows`: up to so many rows ours are used. `deterministic`: ours for any number of rows, in
    tiles of one size, so that a row's result never depends on those beside it."""

    dtype: torch.dtype
    launch: Launch
    fused_rows: int
    deterministic: bool = False

    def __call__(self, weight: Tensor, bias: Tensor | None, /) -> "CudaLinear":
        """See MakeLinear."""
        return CudaLinear(self, weight.to(self.dtype), None if bias is None else bias.to(self.dtype))


class CudaLinear:
    """See linear.FusedLinear."""

    def __init__(self, kind: CudaLinears, weight: Tensor, bias: Tensor | None) -> None:
        self._kind = kind
        self._weight = weight
        self._bias = bias

    def __call__(self, x: Tensor) -> Tensor:
        """See Linear."""
        if self._kind.deterministic:
            return multiply(x, self._weight, launch=self._kind.launch, bias=self._bias, invariant=True)
        if self.takes(len(x)):
            return multiply(x, self._weight, launch=self._kind.launch, bias=self._bias)
        return F.linear(x, self._weight, self._bias)

    def takes(self, num_rows: int) -> bool:
        """See FusedLinear."""
        return not self._kind.deterministic and num_rows <= self._kind.fused_rows and fits(self._weight, num_rows)

    def fused(
        self, x: Tensor, *, norm: Norm | None = None, gate: Activation | None = None, add_to: Tensor | None = None
    ) -> Tensor:
        """See FusedLinear."""
        return multiply(x, self._weight, launch=self._kind.launch, bias=self._bias, norm=norm, gate=gate, add_to=add_to)
