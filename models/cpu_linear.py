"""Products on a CPU, in layouts that its libraries pack once. In all of them a row's result depends on that row alone,
bit for bit."""

import functools
import warnings
from collections.abc import Callable

import torch
from torch import Tensor

from corymb.models.errors import UnsupportedModel

HALF_MAX = torch.finfo(torch.float16).max
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
        packed = torch.ops.mkldnn._reorder_linear_weight(weight.float().contiguous(), None)
        self._multiply = _scripted(_PackedProduct(packed, _own(bias)))

    def __call__(self, x: Tensor) -> Tensor:
        """See Linear."""
        if len(x) == 1:  # one row alone may take another kernel, which sums in another order
            return self._multiply(x.expand(2, -1))[:1]
        return self._multiply(x)


class HalfLinear:
    """float16 weights times float32 inputs, summed in float32: FBGEMM widens each weight in registers.

    Half the memory to read, which is what few rows wait for, and no slower than float32 with many.
    """

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        weight = weight.float()
        low, high = weight.aminmax()
        if not (low >= -HALF_MAX and high <= HALF_MAX):
            raise UnsupportedModel("The model has weights beyond float16's range; serve it with --dtype float32.")
        self._multiply = _half_product(weight, bias)

    def __call__(self, x: Tensor) -> Tensor:
        """See Linear."""
        num_rows = len(x)
        missing = num_alike(num_rows) - num_rows
        if missing:
            x = torch.nn.functional.pad(x, (0, 0, 0, missing))
        return self._multiply(x)[:num_rows]


class Int8Linear:
    """int8 weights with a scale for each output, times inputs in two 8-bit digits with a scale for each row.

    One digit is too coarse: a few inputs of a language model are far larger than the rest. The second costs little, as
    both digits of all rows are one product: it reads the weights once.
    """

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        product = _Int8Product(_pack_int8(weight.float()), _own(bias), input_levels())
        self._multiply = _scripted(product)

    def __call__(self, x: Tensor) -> Tensor:
        """See Linear."""
        return self._multiply(x)


@functools.cache
def num_alike(num_rows: int) -> int:
    """The least number of rows, from `num_rows` on, in which FBGEMM sums all of them in the one order.

    It divides rows among kernels of several heights, and on CPUs without AVX-512 the lowest ones sum in another order
    than the rest: what this one does with equal rows decides.
    """
    one = torch.linspace(-1, 3, 48)[None].exp()
    multiply = _half_product(torch.linspace(-2, 2, 64 * 48).sin().view(64, 48), None)
    usual = multiply(one.expand(60, -1))[0]  # 60 rows are whole kernels of every height
    while not bool((multiply(one.expand(num_rows, -1)) == usual).all()):
        num_rows += 1
    return num_rows


def _half_product(weight: Tensor, bias: Tensor | None) -> Callable[[Tensor], Tensor]:
    return _scripted(_HalfProduct(torch.ops.quantized.linear_prepack_fp16(weight, _own(bias))))


def _own(bias: Tensor | None) -> Tensor | None:
    return None if bias is None else bias.to(torch.float32, copy=True)


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


def _scripted(product: torch.nn.Module) -> Callable[[Tensor], Tensor]:
    """Calls the product from TorchScript: a third of the time that Python takes, which few rows would notice."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*torch.jit.script.*deprecated")
        forward: Callable[[Tensor], Tensor] = torch.jit.script(product).forward
    return forward


class _PackedProduct(torch.nn.Module):
    def __init__(self, packed: Tensor, bias: Tensor | None) -> None:
        super().__init__()
        self.packed = packed
        self.bias = bias

    def forward(self, x: Tensor) -> Tensor:
        product: Tensor = torch.ops.mkldnn._linear_pointwise(x, self.packed, self.bias, "none", [], None)
        return product


class _HalfProduct(torch.nn.Module):
    def __init__(self, packed: object) -> None:
        super().__init__()
        self.packed = packed

    def forward(self, x: Tensor) -> Tensor:
        product: Tensor = torch.ops.quantized.linear_dynamic_fp16(x, self.packed)
        return product


class _Int8Product(torch.nn.Module):
    def __init__(self, packed: object, bias: Tensor | None, levels: int) -> None:
        super().__init__()
        self.packed = packed
        self.bias = bias
        self.levels = levels
        self.tiny = TINY

    def forward(self, x: Tensor) -> Tensor:
        # Rows are brought to [-1, 1], so that one scale fits them all and none depends on its neighbours.
        sizes = x.abs().amax(dim=1, keepdim=True).clamp_(min=self.tiny)
        inputs = x / sizes
        high = inputs.mul(self.levels).round_().div_(self.levels)
        low = inputs.sub_(high).mul_(2 * self.levels)
        digits = torch.cat([high, low])
        product: Tensor = torch.ops.quantized.linear_with_input_q_dq_qweight_dq_output_fp32(
            digits, 1 / self.levels, self.levels + 1, self.packed
        )
        out = torch.add(product[: len(x)], product[len(x) :], alpha=1 / (2 * self.levels)).mul_(sizes)
        if self.bias is not None:
            out = out.add_(self.bias)
        return out
