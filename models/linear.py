"""Products with weights."""

from typing import Literal, Protocol, runtime_checkable

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from corymb.kernels.operations import Activation, Norm
from corymb.models.cpu_linear import HalfLinear, Int8Linear, PackedLinear, has_half_products, has_packed_products
from corymb.models.errors import UnsupportedModel
from corymb.models.precision import WeightType

Part = Literal["norm", "gate", "addition"]


class Linear(Protocol):
    """A loaded weight [outputs, inputs] and, maybe, a bias."""

    def __call__(self, x: Tensor) -> Tensor:
        """Returns x @ weight.T + bias of x [N, inputs]."""
        ...


@runtime_checkable
class FusedLinear(Linear, Protocol):
    """A product that can take in what stands around it."""

    def fuses(self, num_rows: int, part: Part) -> bool:
        """Whether it is faster with this part fused in, for so many rows."""
        ...

    def fused(
        self, x: Tensor, *, norm: Norm | None = None, gate: Activation | None = None, add_to: Tensor | None = None
    ) -> Tensor:
        """Returns x @ weight.T + bias of x [N, inputs]: of its norm, if one is given; with a gate, activation(first
        half) × second half of the outputs; added to `add_to` in place, if that is given."""
        ...


class MakeLinear(Protocol):
    """Makes products out of weights [outputs, inputs] and biases [outputs], of any type."""

    def __call__(self, weight: Tensor, bias: Tensor | None, /) -> Linear:
        """Keeps what it is given, or a copy in a layout of its own."""
        ...


class PlainLinear:
    """Whatever torch does, on any device and in any type."""

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        self._weight = weight
        self._bias = bias

    def __call__(self, x: Tensor) -> Tensor:
        """See Linear."""
        return F.linear(x, self._weight, self._bias)


def linear_for(device: torch.device, compute: torch.dtype, weights: WeightType) -> MakeLinear:
    """How products are made on a device with weights of a type. On a CPU, float32 sums give a row the same bits
    whatever rows are beside it."""
    if device.type != "cpu" or compute != torch.float32:
        return lambda weight, bias: _plain(weight, bias, compute)
    if weights == "int8" and not has_half_products():
        raise UnsupportedModel("--quantization int8 needs an x86 CPU; leave it out.")
    if weights == "int8":
        return Int8Linear
    if weights == "float16" and has_half_products():
        return HalfLinear
    if weights == "float16":
        return lambda weight, bias: _exact()(weight.half(), bias)
    return _exact()


def exact_linear_for(device: torch.device) -> MakeLinear:
    """How products in float32 are made, whatever the model's types are."""
    if device.type != "cpu":
        return lambda weight, bias: _plain(weight, bias, torch.float32)
    return _exact()


def _exact() -> MakeLinear:
    if has_packed_products():
        return PackedLinear
    return lambda weight, bias: _plain(weight, bias, torch.float32)


def _plain(weight: Tensor, bias: Tensor | None, dtype: torch.dtype) -> PlainLinear:
    copied = weight.device.type == "cpu"  # see Weights
    return PlainLinear(weight.to(dtype, copy=copied), None if bias is None else bias.to(dtype, copy=copied))
