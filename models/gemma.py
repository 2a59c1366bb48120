"""Gemma 2 and 3: norms around attention and around the MLP, and scaled embeddings."""

from torch import Tensor

from corymb.models.decoder import Decoder
from corymb.models.layers import MLP, Parts, SelfAttention
from corymb.models.model import Batch


class GemmaLayer:
    """See decoder.Layer."""

    def __init__(self, parts: Parts, index: int) -> None:
        name = f"model.layers.{index}"
        self._attention = SelfAttention(parts, f"{name}.self_attn", index)
        self._mlp = MLP(parts, f"{name}.mlp")
        self._before_attention = parts.norm(f"{name}.input_layernorm")
        self._after_attention = parts.norm(f"{name}.post_attention_layernorm")
        self._before_mlp = parts.norm(f"{name}.pre_feedforward_layernorm")
        self._after_mlp = parts.norm(f"{name}.post_feedforward_layernorm")

    def attend(self, delta: Tensor | None, residual: Tensor, batch: Batch, turns: Tensor | None) -> Tensor:
        """See decoder.Layer."""
        return self._attention.attend(delta, residual, self._before_attention, batch, turns)

    def complete(self, attended: Tensor, residual: Tensor) -> Tensor:
        """See decoder.Layer."""
        added = self._after_attention(self._attention.output(attended))
        return self._after_mlp(self._mlp(self._before_mlp.after_add(added, residual)))


def build_gemma(parts: Parts) -> Decoder:
    """Builds the model out of its tensors."""
    layers = [GemmaLayer(parts, index) for index in range(len(parts.decoder.layers))]
    return Decoder(parts, layers)
