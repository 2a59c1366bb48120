"""The gated delta net: Qwen3-Next's and Qwen3.5's layers without attention."""

from collections.abc import Sequence

import torch
from torch import Tensor

from corymb.kernels.attention import RaggedLayout
from corymb.kernels.recurrence import Convolution, DeltaRule, GatedNorm
from corymb.models.layers import Parts, RMSNorm, add_product, multiply_normed
from corymb.models.model import Batch
from corymb.models.recurrent_config import DeltaNetConfig


class DeltaNet:
    """See mixers.Mixer."""

    def __init__(self, parts: Parts, layer: str, index: int, config: DeltaNetConfig) -> None:
        name = f"{layer}.{config.name}"
        self._config = config
        self._group = parts.group
        self._recurrence = parts.recurrence
        self._first_state = parts.decoder.num_states(index)
        self._record = parts.decoder.num_recurrent(index)
        self._product = parts.storage.makers.linear(_projection(parts, name, config), None)
        self._output = parts.linear(f"{name}.out_proj", bias=False)
        self._convolution = Convolution(convolution_weight(parts, f"{name}.conv1d"), None, silu=True)
        rate, bias = (parts.weights.take(f"{name}.{part}").float() for part in ("A_log", "dt_bias"))
        self._rule = DeltaRule(
            num_key_heads=config.num_key_heads,
            num_value_heads=config.num_value_heads,
            key_dim=config.key_dim,
            value_dim=config.value_dim,
            rate=-rate.exp(),
            bias=bias.clone(),
        )
        weight = parts.weights.take(f"{name}.norm.weight").float().clone()
        self._norm = GatedNorm(weight[None], parts.decoder.norm_eps, gate_first=False)

    def attend(
        self,
        delta: Tensor | None,
        residual: Tensor,
        norm: RMSNorm,
        batch: Batch,
        turns: Tensor | None,  # noqa: ARG002
    ) -> Tensor:
        """See Mixer."""
        config, heads = self._config, self._config.num_value_heads
        product = multiply_normed(self._product, delta, residual, norm)
        qkv, gates, strengths, decays = torch.split(
            product, [config.num_channels, config.value_size, heads, heads], dim=-1
        )
        states = batch.states[self._first_state : self._first_state + 2]
        read = batch.fold(self._record, (qkv, strengths, decays), states, self._fold)
        return self._recurrence.gate(read, gates.view(read.shape), self._norm).view(len(read), -1)

    def _fold(self, parts: Sequence[Tensor], states: Sequence[Tensor], layout: RaggedLayout) -> Tensor:
        qkv, strengths, decays = parts
        windows, matrices = states
        qkv = self._recurrence.convolve(qkv, self._convolution, windows, layout)
        return self._recurrence.apply_delta_rule(qkv, strengths, decays, self._rule, matrices, layout)

    def add_to(self, residual: Tensor, attended: Tensor) -> Tensor | None:
        """See Mixer."""
        return add_product(self._output, attended, residual, self._group)


def convolution_weight(parts: Parts, name: str) -> Tensor:
    """float32 [width, channels] of a checkpoint's [channels, 1, width]."""
    return parts.weights.take(f"{name}.weight").float().squeeze(1).t().contiguous()


def _projection(parts: Parts, name: str, config: DeltaNetConfig) -> Tensor:
    """One product's rows: queries, keys, values, gates of all heads, then strengths, then decays."""
    if not config.grouped:
        return torch.cat([parts.weights.take(f"{name}.in_proj_{part}.weight") for part in ("qkv", "z", "b", "a")])
    groups = config.num_key_heads
    values, heads = config.value_size // groups, config.num_value_heads // groups
    sizes = {"qkvz": [config.key_dim, config.key_dim, values, values], "ba": [heads, heads]}
    parted = []
    for part, lengths in sizes.items():
        weight = parts.weights.take(f"{name}.in_proj_{part}.weight")
        grouped = weight.view(groups, sum(lengths), -1)
        parted += [one.reshape(-1, weight.shape[1]) for one in torch.split(grouped, lengths, dim=1)]
    return torch.cat(parted)
