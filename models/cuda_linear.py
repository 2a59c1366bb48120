"""Products on a GPU: ours for few rows, where what stands around them is fused in, and the library's for many."""

from dataclasses import dataclass, field

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from corymb.kernels.operations import Activation, Norm
from corymb.kernels.triton_ahead import MOST_ROWS, Ahead, nothing_ahead
from corymb.kernels.triton_jit import Launch
from corymb.kernels.triton_linear import multiply
from corymb.kernels.triton_products import Size, fits, fuses_gate, fuses_norm, wins
from corymb.models.linear import Part


@dataclass(frozen=True, slots=True)
class CudaLinears:
    """Makes products. `fused_rows`: up to so many rows ours are used. `deterministic`: ours for any number of rows, in
    tiles of one size, so that a row's result never depends on those beside it. `library_adds`: where the library's are
    used for few rows, it adds them, too."""

    dtype: torch.dtype
    launch: Launch
    fused_rows: int
    deterministic: bool = False
    library_adds: bool = False
    ahead: Ahead = field(default_factory=nothing_ahead)

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
        ours = self._is_ours(len(x))
        self._kind.ahead.passed(self._weight, len(x), asks=ours)
        if self._kind.deterministic:
            return multiply(x, self._weight, launch=self._kind.launch, bias=self._bias, invariant=True)
        if ours:
            return multiply(x, self._weight, launch=self._kind.launch, bias=self._bias)
        return F.linear(x, self._weight, self._bias)

    def fuses(self, num_rows: int, part: Part) -> bool:
        """See FusedLinear."""
        decide = {"norm": fuses_norm, "gate": fuses_gate, "addition": wins}[part]
        if self._may_be_ours(num_rows) and decide(self._size(num_rows)):
            return True
        return part == "addition" and self._library_adds(num_rows)

    def fused(
        self, x: Tensor, *, norm: Norm | None = None, gate: Activation | None = None, add_to: Tensor | None = None
    ) -> Tensor:
        """See FusedLinear."""
        kind, weight = self._kind, self._weight
        ours = add_to is None or self._is_ours(len(x))
        kind.ahead.passed(weight, len(x), asks=ours)
        if not ours and add_to is not None:
            return add_to.addmm_(x, weight.t())
        return multiply(
            x,
            weight,
            launch=kind.launch,
            bias=self._bias,
            norm=norm,
            gate=gate,
            add_to=add_to,
            ahead=kind.ahead if gate else None,
        )

    def _is_ours(self, num_rows: int) -> bool:
        return self._may_be_ours(num_rows) and wins(self._size(num_rows))

    def _library_adds(self, num_rows: int) -> bool:
        kind = self._kind
        return kind.library_adds and not kind.deterministic and self._bias is None and num_rows <= MOST_ROWS

    def _may_be_ours(self, num_rows: int) -> bool:
        return not self._kind.deterministic and num_rows <= self._kind.fused_rows and fits(self._weight, num_rows)

    def _size(self, num_rows: int) -> Size:
        return Size(num_rows, *self._weight.shape)
