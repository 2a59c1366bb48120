"""Llama and the models that follow it: a norm before what mixes tokens and one before the MLP."""

from torch import Tensor

from corymb.models.decoder import Decoder
from corymb.models.layers import Parts
from corymb.models.mixers import layer_mixer
from corymb.models.model import Batch
from corymb.models.routed import layer_mlp


class LlamaLayer:
    """See decoder.Layer."""

    def __init__(self, parts: Parts, index: int) -> None:
        name = f"model.layers.{index}"
        self._mixer = layer_mixer(parts, index)
        self._mlp = layer_mlp(parts, index)
        self._mixer_norm = parts.norm(f"{name}.input_layernorm", sums=True)
        self._mlp_norm = parts.norm(f"{name}.post_attention_layernorm", sums=True)

    def attend(self, delta: Tensor | None, residual: Tensor, batch: Batch, turns: Tensor | None) -> Tensor:
        """See decoder.Layer."""
        return self._mixer.attend(delta, residual, self._mixer_norm, batch, turns)

    def complete(self, attended: Tensor, residual: Tensor) -> Tensor | None:
        """See decoder.Layer."""
        return self._mlp.after(self._mixer.add_to(residual, attended), residual, self._mlp_norm)


def build_llama(parts: Parts) -> Decoder:
    """Builds the model out of its tensors."""
    return Decoder(parts, [LlamaLayer(parts, index) for index in range(len(parts.decoder.layers))], sums=True)
