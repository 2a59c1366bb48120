"""Products in float32 on a GPU, for decisions that rounding would flip."""

from dataclasses import dataclass

from torch import Tensor

from corymb.kernels.triton_jit import Launch
from corymb.kernels.triton_linear import multiply
from corymb.kernels.triton_products import Shape
from corymb.models.linear import Linear, PlainLinear

LARGEST_BLOCK = 32  # float32 sums take no tensor cores: a small tile keeps its registers


@dataclass(frozen=True, slots=True)
class CudaExactLinears:
    """Makes products. `deterministic`: ours, in tiles of one size, so that a row never depends on those beside it."""

    launch: Launch
    deterministic: bool = False

    def __call__(self, weight: Tensor, bias: Tensor | None, /) -> Linear:
        """See MakeLinear."""
        weight = weight.float().contiguous()
        bias = None if bias is None else bias.float()
        if not self.deterministic or weight.shape[1] % 16:
            return PlainLinear(weight, bias)
        return _InvariantLinear(weight, bias, self.launch)


class _InvariantLinear:
    def __init__(self, weight: Tensor, bias: Tensor | None, launch: Launch) -> None:
        self._weight = weight
        self._bias = bias
        self._launch = launch
        block_k = LARGEST_BLOCK if weight.shape[1] % LARGEST_BLOCK == 0 else 16
        self._shape = Shape(32, block_k, num_warps=4, num_stages=3)

    def __call__(self, x: Tensor) -> Tensor:
        """See Linear."""
        return multiply(x, self._weight, launch=self._launch, bias=self._bias, shape=self._shape, invariant=True)
