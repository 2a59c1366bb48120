"""LFM2's layers without attention: a short convolution between two gates."""

from collections.abc import Sequence

from torch import Tensor

from corymb.kernels.attention import RaggedLayout
from corymb.kernels.recurrence import Convolution
from corymb.models.delta_net import convolution_weight
from corymb.models.layers import Parts, RMSNorm, add_product, multiply_normed
from corymb.models.model import Batch
from corymb.models.recurrent_config import ShortConvolutionConfig


class ShortConvolution:
    """See mixers.Mixer."""

    def __init__(self, parts: Parts, layer: str, index: int, config: ShortConvolutionConfig) -> None:
        name = f"{layer}.{config.name}"
        self._group = parts.group
        self._recurrence = parts.recurrence
        self._state = parts.decoder.num_states(index)
        self._record = parts.decoder.num_recurrent(index)
        self._product = parts.linear(f"{name}.in_proj", bias=config.bias)
        self._output = parts.linear(f"{name}.out_proj", bias=config.bias)
        bias = parts.weights.take(f"{name}.conv.bias").float().clone() if config.bias else None
        self._convolution = Convolution(convolution_weight(parts, f"{name}.conv"), bias, silu=False)

    def attend(
        self,
        delta: Tensor | None,
        residual: Tensor,
        norm: RMSNorm,
        batch: Batch,
        turns: Tensor | None,  # noqa: ARG002
    ) -> Tensor:
        """See Mixer."""
        before, after, inputs = multiply_normed(self._product, delta, residual, norm).chunk(3, dim=-1)
        states = batch.states[self._state : self._state + 1]
        return batch.fold(self._record, (before * inputs,), states, self._fold) * after

    def _fold(self, parts: Sequence[Tensor], states: Sequence[Tensor], layout: RaggedLayout) -> Tensor:
        (inputs,), (windows,) = parts, states
        return self._recurrence.convolve(inputs, self._convolution, windows, layout)

    def add_to(self, residual: Tensor, attended: Tensor) -> Tensor | None:
        """See Mixer."""
        return add_product(self._output, attended, residual, self._group)
