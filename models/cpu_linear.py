"""Products on a CPU, in layouts that its libraries pack once. In all of them a row's result depends on that row alone,
bit for bit."""

import functools
import warnings

import torch
from torch import Tensor

from corymb.models.errors import UnsupportedModel

TINY = 1e-30  # in place of zero, where something is divided by the largest


def has_half_products() -> bool:
    """Whether torch was built with products of float16 weights (FBGEMM: x86 only)."""
    return "fbgemm" in torch.backends.quantized.supported_engines


def has_packed_products() -> bool:
    """Whether torch was built with oneDNN."""
    return bool(torch.backends.mkldnn.is_available())  # type: ignore[no-untyped-call]


class PackedLinear:
    """float32 weights in oneDNN's blocked layout: two to four times as fast as `F.linear` at 2 to 32 rows."""

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        self._weight = torch.ops.mkldnn._reorder_linear_weight(weight.float().contiguous(), None)
        self._bias = None if bias is None else bias.float()

    def __call__(self, x: Tensor) -> Tensor:
        """See Linear."""
        if len(x) == 1:  # one row alone may take another kernel, which sums in another order
            return self._multiply(x.expand(2, -1))[:1]
        return self._multiply(x)

    def _multiply(self, x: Tensor) -> Tensor:
        product: Tensor = torch.ops.mkldnn._linear_pointwise(x, self._weight, self._bias, "none", [], None)
        return product


class HalfLinear:
    """float16 weights times float32 inputs, summed in float32: FBGEMM widens each weight in registers.

    Half the memory to read, which is what few rows wait for, and no slower than float32 with many.
    """

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        weight = weight.half().float()
        if not weight.isfinite().all():
            raise UnsupportedModel("The model has weights beyond float16's range; serve it with --dtype float32.")
        self._packed = torch.ops.quantized.linear_prepack_fp16(weight, None if bias is None else bias.float())

    def __call__(self, x: Tensor) -> Tensor:
        """See Linear."""
        product: Tensor = torch.ops.quantized.linear_dynamic_fp16(x, self._packed)
        return product


class Int8Linear:
    """int8 weights with a scale for each output, times inputs rounded to 8 bits with a scale for each row."""

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        self._packed = _pack_int8(weight.float())
        self._bias = None if bias is None else bias.float()

    def __call__(self, x: Tensor) -> Tensor:
        """See Linear."""
        # Rows are brought to [-1, 1], so that one scale fits them all and none depends on its neighbours.
        scales = x.abs().amax(dim=1, keepdim=True).clamp_(min=TINY)
        levels = input_levels()
        product: Tensor = torch.ops.quantized.linear_with_input_q_dq_qweight_dq_output_fp32(
            x / scales, 1 / levels, levels + 1, self._packed
        )
        product.mul_(scales)
        return product if self._bias is None else product.add_(self._bias)


@functools.cache
def input_levels() -> int:
    """Steps from zero to the largest input.

    CPUs without VNNI add pairs of products in 16 bits, where 127 steps overflow: what this one does with the largest
    inputs and weights decides.
    """
    ones = torch.ones(1, 64)
    product = torch.ops.quantized.linear_with_input_q_dq_qweight_dq_output_fp32(ones, 1 / 127, 128, _pack_int8(ones))
    return 127 if abs(float(product) - 64) < 0.01 else 63


def _pack_int8(weight: Tensor) -> object:
    scales = weight.abs().amax(dim=1).clamp_(min=TINY) / 127
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*quantize_per_channel.*deprecated")
        zeros = torch.zeros(len(scales), dtype=torch.int64)
        rounded = torch.quantize_per_channel(weight, scales, zeros, axis=0, dtype=torch.qint8)
    packed: object = torch.ops.quantized.linear_prepack(rounded, None)
    return packed
