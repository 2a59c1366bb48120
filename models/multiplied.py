"""Weights with a model's constant multipliers in them, so that its layers are like any other's."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from corymb.models.config import DecoderConfig
from corymb.models.recurrent_config import Mamba2Config, Multipliers
from corymb.models.weights import Weights

Factor = Callable[[Multipliers, DecoderConfig], float | Tensor]


def _by_part(by: Multipliers, decoder: DecoderConfig) -> Tensor:
    """float32, one for each output of a Mamba mixer's first product."""
    config = decoder.layers[0].recurrent
    assert isinstance(config, Mamba2Config), "multipliers are for layers with a Mamba mixer"
    group_size = config.num_groups * config.state_size
    sizes = torch.tensor([config.size, config.size, group_size, group_size, config.num_heads])
    return torch.tensor(by.mamba_parts).repeat_interleave(sizes)


# What multiplies a product's inputs goes into its weights alone, what multiplies its outputs into its biases too.
WEIGHT_FACTORS: dict[str, Factor] = {
    "self_attn.q_proj": lambda by, _: by.attention_in,
    "self_attn.k_proj": lambda by, _: by.attention_in * by.key,
    "self_attn.v_proj": lambda by, _: by.attention_in,
    "self_attn.o_proj": lambda by, _: by.attention_out,
    "mamba.in_proj": lambda by, decoder: by.mamba_in * _by_part(by, decoder),
    "mamba.out_proj": lambda by, _: by.mamba_out,
    "mlp.gate_proj": lambda by, _: by.mlp_gate,
    "mlp.down_proj": lambda by, _: by.mlp_down,
}
BIAS_FACTORS: dict[str, Factor] = WEIGHT_FACTORS | {
    "self_attn.q_proj": lambda _, __: 1.0,
    "self_attn.k_proj": lambda by, _: by.key,
    "self_attn.v_proj": lambda _, __: 1.0,
    "mamba.in_proj": _by_part,
}


@dataclass(frozen=True, slots=True)
class MultipliedWeights:
    """See Weights. What is multiplied comes as float32, to be rounded once by whoever keeps it."""

    weights: Weights
    decoder: DecoderConfig
    multipliers: Multipliers

    def take(self, name: str) -> Tensor:
        """See Weights."""
        tensor = self.weights.take(name)
        product, _, kind = name.removeprefix("model.layers.").partition(".")[2].rpartition(".")
        factors = {"weight": WEIGHT_FACTORS, "bias": BIAS_FACTORS}.get(kind, {})
        if product not in factors:
            return tensor
        factor = factors[product](self.multipliers, self.decoder)
        if isinstance(factor, Tensor):
            factor = factor.to(tensor.device).view(-1, *[1] * (tensor.dim() - 1))
        return tensor.float() * factor
