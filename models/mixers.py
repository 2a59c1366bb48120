"""What mixes the tokens of a layer: attention, something that carries a state, or both side by side."""

from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor

from corymb.models.config import DecoderConfig
from corymb.models.delta_net import DeltaNet
from corymb.models.layers import Parts, RMSNorm, SelfAttention
from corymb.models.mamba2 import Mamba2
from corymb.models.model import Batch
from corymb.models.recurrent_config import DeltaNetConfig, Mamba2Config
from corymb.models.short_convolution import ShortConvolution
from corymb.models.states import StateSpec


class Mixer(Protocol):
    """The part of a layer that looks at other tokens."""

    def attend(
        self, delta: Tensor | None, residual: Tensor, norm: RMSNorm, batch: Batch, turns: Tensor | None
    ) -> Tensor:
        """Adds delta, if there is any, to residual in place and mixes the norm of that; returns [T, size]."""
        ...

    def add_to(self, residual: Tensor, attended: Tensor) -> Tensor | None:
        """What is still to be added to residual, of what N tokens attended to; None where it is added already."""
        ...


def layer_mixer(parts: Parts, index: int) -> Mixer:
    """The mixer of a layer."""
    layer, name = parts.decoder.layers[index], f"model.layers.{index}"
    match layer.recurrent:
        case None:
            return SelfAttention(parts, f"{name}.self_attn", index)
        case DeltaNetConfig():
            return DeltaNet(parts, name, index, layer.recurrent)
        case Mamba2Config():
            attention, mamba = (
                SelfAttention(parts, f"{name}.self_attn", index),
                Mamba2(parts, name, index, layer.recurrent),
            )
            return SideBySide(
                attention, mamba, [parts.decoder.num_heads * parts.decoder.head_dim, layer.recurrent.size]
            )
        case _:
            return ShortConvolution(parts, name, index, layer.recurrent)


class SideBySide:
    """Attention beside a Mamba 2 mixer, both of the same norm."""

    def __init__(self, attention: SelfAttention, mamba: Mamba2, sizes: Sequence[int]) -> None:
        self._attention = attention
        self._mamba = mamba
        self._sizes = list(sizes)

    def attend(
        self, delta: Tensor | None, residual: Tensor, norm: RMSNorm, batch: Batch, turns: Tensor | None
    ) -> Tensor:
        """See Mixer."""
        x = norm.after_add(delta, residual)
        attended = self._attention.attend_normed(x, batch, turns)
        return torch.cat((attended, self._mamba.mix(x, batch)), dim=-1)

    def add_to(self, residual: Tensor, attended: Tensor) -> Tensor | None:
        """See Mixer."""
        looked, mixed = torch.split(attended, self._sizes, dim=-1)
        parts = self._attention.add_to(residual, looked), self._mamba.add_to(residual, mixed)
        missing = [part for part in parts if part is not None]
        return sum(missing[1:], missing[0]) if missing else None


def state_specs(decoder: DecoderConfig) -> list[StateSpec]:
    """What a decoder's layers carry from token to token: windows of convolutions, and matrices in float32."""
    specs = []
    for layer in decoder.layers:
        if layer.recurrent is not None:
            specs.append(StateSpec((layer.recurrent.width - 1, layer.recurrent.num_channels)))
            if layer.recurrent.matrix is not None:
                specs.append(StateSpec(layer.recurrent.matrix, torch.float32))
    return specs


def record_specs(decoder: DecoderConfig) -> list[StateSpec]:
    """What of a token each layer with a state must be given to take it through that again."""
    return [StateSpec((layer.recurrent.record_size,)) for layer in decoder.layers if layer.recurrent is not None]
