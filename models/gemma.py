"""Gemma 2 and 3: norms around attention and around the MLP, and scaled embeddings."""

from torch import Tensor

from corymb.models.decoder import Decoder
from corymb.models.layers import MLP, Parts, SelfAttention
from corymb.models.model import Batch

NORM_OFFSET = 1.0  # checkpoints store the distance of a norm's weights from one


class GemmaLayer:
    """See decoder.Layer."""

    def __init__(self, parts: Parts, index: int) -> None:
        name = f"model.layers.{index}"
        self._attention = SelfAttention(parts, f"{name}.self_attn", index, norm_offset=NORM_OFFSET)
        self._mlp = MLP(parts, f"{name}.mlp")
        self._before_attention = parts.norm(f"{name}.input_layernorm", offset=NORM_OFFSET)
        self._after_attention = parts.norm(f"{name}.post_attention_layernorm", offset=NORM_OFFSET)
        self._before_mlp = parts.norm(f"{name}.pre_feedforward_layernorm", offset=NORM_OFFSET)
        self._after_mlp = parts.norm(f"{name}.post_feedforward_layernorm", offset=NORM_OFFSET)

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
    scale = parts.decoder.hidden_size**0.5
    return Decoder(parts, layers, embedding_scale=scale, norm_offset=NORM_OFFSET)
