"""The tensor functions between a decoder's products: what a back end has to bring besides attention."""

from dataclasses import dataclass
from typing import Literal, Protocol

from torch import Tensor

Activation = Literal["silu", "gelu_tanh"]


@dataclass(frozen=True, slots=True)
class Norm:
    """An RMS norm; weight float32."""

    weight: Tensor
    eps: float


class Operations(Protocol):
    """A back end. Inputs are contiguous in their last dimension; sums run in float32 whatever the inputs' type."""

    def rms_norm(self, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        """Returns x ÷ rms(x) × weight over the last dimension; weight is float32."""
        ...

    def add_rms_norm(self, x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> Tensor:
        """Adds x to residual in place and returns the norm of the sum."""
        ...

    def rope(self, heads: Tensor, turns: Tensor) -> None:
        """Turns the heads [T, num_heads, head_dim] of each token in place.

        `turns` is float32 [T, head_dim]: the cosines of each token's angles, then the sines. Dimension i of a head
        turns with i + head_dim ÷ 2.
        """
        ...

    def silu_mul(self, gate_up: Tensor) -> Tensor:
        """Returns silu(gate) × up of [T, 2 × n], where gate comes first."""
        ...

    def gelu_tanh_mul(self, gate_up: Tensor) -> Tensor:
        """Returns gelu(gate) × up, with gelu's tanh approximation."""
        ...
