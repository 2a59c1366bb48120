"""DeepSeek-V3 and its followers: Llama's layers around attention to latents."""

from torch import Tensor

from corymb.models.decoder import Decoder
from corymb.models.latents import LastChosen, LatentSelfAttention
from corymb.models.layers import Parts
from corymb.models.model import Batch
from corymb.models.routed import layer_mlp


class DeepseekLayer:
    """See decoder.Layer."""

    def __init__(self, parts: Parts, index: int, last_chosen: LastChosen) -> None:
        name = f"model.layers.{index}"
        self._attention = LatentSelfAttention(parts, f"{name}.self_attn", index, last_chosen)
        self._mlp = layer_mlp(parts, index)
        self._attention_norm = parts.norm(f"{name}.input_layernorm", sums=True)
        self._mlp_norm = parts.norm(f"{name}.post_attention_layernorm", sums=True)

    def attend(self, delta: Tensor | None, residual: Tensor, batch: Batch, turns: Tensor | None) -> Tensor:
        """See decoder.Layer."""
        return self._attention.attend(delta, residual, self._attention_norm, batch, turns)

    def complete(self, attended: Tensor, residual: Tensor) -> Tensor | None:
        """See decoder.Layer."""
        return self._mlp.after(self._attention.add_to(residual, attended), residual, self._mlp_norm)


def build_deepseek(parts: Parts) -> Decoder:
    """Builds the model out of its tensors."""
    last_chosen = LastChosen()
    layers = [DeepseekLayer(parts, index, last_chosen) for index in range(len(parts.decoder.layers))]
    return Decoder(parts, layers, sums=True)
