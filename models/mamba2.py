"""The Mamba 2 mixer."""

from collections.abc import Sequence

import torch
from torch import Tensor

from corymb.kernels.attention import RaggedLayout
from corymb.kernels.recurrence import Convolution, GatedNorm, StateSpace
from corymb.models.delta_net import convolution_weight
from corymb.models.layers import Parts, add_product
from corymb.models.model import Batch
from corymb.models.recurrent_config import Mamba2Config


class Mamba2:
    """Stands beside a layer's attention."""

    def __init__(self, parts: Parts, layer: str, index: int, config: Mamba2Config) -> None:
        name = f"{layer}.{config.name}"
        self._config = config
        self._group = parts.group
        self._recurrence = parts.recurrence
        self._first_state = parts.decoder.num_states(index)
        self._record = parts.decoder.num_recurrent(index)
        self._product = parts.linear(f"{name}.in_proj", bias=config.bias)
        self._output = parts.linear(f"{name}.out_proj", bias=config.output_bias)
        bias = parts.weights.take(f"{name}.conv1d.bias").float().clone() if config.convolution_bias else None
        self._convolution = Convolution(convolution_weight(parts, f"{name}.conv1d"), bias, silu=True)
        rate, skip, step_bias = (parts.weights.take(f"{name}.{part}").float() for part in ("A_log", "D", "dt_bias"))
        self._space = StateSpace(
            num_heads=config.num_heads,
            head_dim=config.head_dim,
            num_groups=config.num_groups,
            state_size=config.state_size,
            rate=-rate.exp(),
            bias=step_bias.clone(),
            skip=skip.clone(),
            least_step=config.least_step,
            most_step=config.most_step,
        )
        self._norm = _gated_norm(parts, name, config)

    def mix(self, x: Tensor, batch: Batch) -> Tensor:
        """Returns [T, size] of x [T, hidden_size], which is normed."""
        config = self._config
        gates, xbc, steps = torch.split(self._product(x), [config.size, config.num_channels, config.num_heads], dim=-1)
        states = batch.states[self._first_state : self._first_state + 2]
        read = batch.fold(self._record, (xbc, steps), states, self._fold)
        # The norm, if there is one, is over groups of heads.
        shape = (len(read), config.num_groups if config.normed else config.num_heads, -1)
        return self._recurrence.gate(read.view(shape), gates.view(shape), self._norm).view(len(read), -1)

    def _fold(self, parts: Sequence[Tensor], states: Sequence[Tensor], layout: RaggedLayout) -> Tensor:
        xbc, steps = parts
        windows, matrices = states
        xbc = self._recurrence.convolve(xbc, self._convolution, windows, layout)
        return self._recurrence.scan(xbc, steps, self._space, matrices, layout)

    def add_to(self, residual: Tensor, mixed: Tensor) -> Tensor | None:
        """What is still to be added to residual; None where it is added already."""
        return add_product(self._output, mixed, residual, self._group)


def _gated_norm(parts: Parts, name: str, config: Mamba2Config) -> GatedNorm | None:
    if not config.normed:
        return None
    weight = parts.weights.take(f"{name}.norm.weight").float().clone()
    return GatedNorm(weight.view(config.num_groups, -1), parts.decoder.norm_eps, config.gate_first)
