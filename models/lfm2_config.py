"""Reads the configurations of LFM2: short convolutions, and attention in some layers."""

import dataclasses

from corymb.kernels.routing import Routing
from corymb.models.config import DecoderConfig, LayerConfig
from corymb.models.experts_config import ExpertsConfig
from corymb.models.fields import Fields
from corymb.models.llama_config import decoder_of
from corymb.models.moe_config import check_routing, with_experts
from corymb.models.recurrent_config import ShortConvolutionConfig
from corymb.models.recurrent_fields import convolution_width, recurrent_layers


def read_lfm2(fields: Fields) -> DecoderConfig:
    """LFM2, dense. The size of its MLP is derived from one that an ungated MLP would have."""
    size = fields.whole("block_ff_dim", fields.whole("intermediate_size", 12_288))
    if fields.flag("block_auto_adjust_ff_dim", True):
        size = int(2 * size / 3)
        if fields.values.get("block_ffn_dim_multiplier", 1.0) is not None:
            multiple = fields.whole("block_multiple_of", 256)
            size = -(-int(fields.number("block_ffn_dim_multiplier", 1.0) * size) // multiple) * multiple
    return dataclasses.replace(_decoder(fields.with_defaults(intermediate_size=size)), intermediate_size=size)


def read_lfm2_moe(fields: Fields) -> DecoderConfig:
    """LFM2 with experts in all layers but the first ones."""
    decoder = _decoder(fields.with_defaults(intermediate_size=7168))
    routing = Routing(
        num_experts=fields.whole("num_experts", 32),
        top_k=fields.whole("num_experts_per_tok", 4),
        scores="sigmoid",
        normalized=fields.flag("norm_topk_prob", True),
        scale=fields.number("routed_scaling_factor", 1.0),
    )
    correction = "expert_bias" if fields.flag("use_expert_bias", True) else None
    size = fields.whole("moe_intermediate_size", 1792)
    experts = ExpertsConfig(check_routing(routing, fields), size, correction=correction)
    num_dense = int(fields.values.get("num_dense_layers", 2))
    return with_experts(decoder, experts, [layer >= num_dense for layer in range(len(decoder.layers))])


def _decoder(fields: Fields) -> DecoderConfig:
    tied = fields.flag("tie_embedding", fields.flag("tie_word_embeddings", True))
    fields = fields.with_defaults(rms_norm_eps=fields.number("norm_eps", 1e-5), num_key_value_heads=8)
    decoder = decoder_of(fields, default_context=128_000, default_theta=1_000_000.0)
    indices = fields.items("full_attn_idxs") if fields.has("full_attn_idxs") else range(len(decoder.layers))
    convolution = ShortConvolutionConfig(
        num_channels=decoder.hidden_size,
        width=convolution_width(fields, "conv_L_cache", 3),
        bias=fields.flag("conv_bias", False),
    )
    recurrent = LayerConfig(rope=None, attends=False, recurrent=convolution)
    attends = [layer in indices for layer in range(len(decoder.layers))]
    return dataclasses.replace(
        decoder,
        tied=tied,
        query_key_norm=True,
        layers=recurrent_layers(fields, decoder, "conv", recurrent, attends),
    )
