"""Reads the configurations of Qwen3-Next and Qwen3.5: gated delta nets, and attention in every fourth layer."""

import dataclasses

from corymb.models.config import DecoderConfig, LayerConfig
from corymb.models.errors import BrokenModel
from corymb.models.experts_config import SharedConfig
from corymb.models.fields import Fields
from corymb.models.llama_config import decoder_of
from corymb.models.moe_config import qwen_experts, qwen_sparse, with_experts
from corymb.models.recurrent_config import DeltaNetConfig
from corymb.models.recurrent_fields import convolution_width, recurrent_layers


def read_qwen3_next(fields: Fields) -> DecoderConfig:
    """Qwen3-Next: experts in all layers but those that config.json names."""
    fields = fields.with_defaults(norm_topk_prob=True, num_experts=512, num_experts_per_tok=10, intermediate_size=5632)
    decoder = _decoder(fields, grouped=True)
    return _with_experts(decoder, fields, qwen_sparse(fields, len(decoder.layers)))


def read_qwen3_5(fields: Fields) -> DecoderConfig:
    """Qwen3.5, dense."""
    return _decoder(fields, grouped=False)


def read_qwen3_5_moe(fields: Fields) -> DecoderConfig:
    """Qwen3.5 with experts in all layers, their tensors stacked."""
    shared_size = fields.whole("shared_expert_intermediate_size", 512)
    fields = fields.with_defaults(norm_topk_prob=True, num_experts=256, intermediate_size=shared_size)
    decoder = _decoder(fields, grouped=False)
    decoder = _with_experts(decoder, fields, [True] * len(decoder.layers))
    assert decoder.experts is not None, "the layers are sparse"
    return dataclasses.replace(decoder, experts=dataclasses.replace(decoder.experts, form="stacked"))


def read_qwen3_5_with_vision(fields: Fields) -> DecoderConfig:
    """The text part of a Qwen3.5 that also reads images."""
    return read_qwen3_5(_text(fields))


def read_qwen3_5_moe_with_vision(fields: Fields) -> DecoderConfig:
    """The text part of a Qwen3.5 with experts that also reads images."""
    return read_qwen3_5_moe(_text(fields))


def _text(fields: Fields) -> Fields:
    return fields.inner("text_config").with_defaults(tie_word_embeddings=fields.flag("tie_word_embeddings", False))


def _decoder(fields: Fields, *, grouped: bool) -> DecoderConfig:
    biased = fields.flag("attention_bias", False)
    decoder = decoder_of(fields, default_context=32_768, default_head_dim=256, default_rotated=0.25)
    interval = fields.whole("full_attention_interval", 4)
    attends = [(layer + 1) % interval == 0 for layer in range(len(decoder.layers))]
    delta_net = LayerConfig(rope=None, attends=False, recurrent=_delta_net(fields, grouped=grouped))
    return dataclasses.replace(
        decoder,
        qkv_bias=biased,
        output_bias=biased,
        query_key_norm=True,
        output_gate=fields.flag("attn_output_gate", True),
        norm_offset=1.0,
        layers=recurrent_layers(fields, decoder, "linear_attention", delta_net, attends),
    )


def _delta_net(fields: Fields, *, grouped: bool) -> DeltaNetConfig:
    config = DeltaNetConfig(
        num_key_heads=fields.whole("linear_num_key_heads", 16),
        num_value_heads=fields.whole("linear_num_value_heads", 32),
        key_dim=fields.whole("linear_key_head_dim", 128),
        value_dim=fields.whole("linear_value_head_dim", 128),
        width=convolution_width(fields, "linear_conv_kernel_dim", 4),
        grouped=grouped,
    )
    if config.num_value_heads % config.num_key_heads:
        raise BrokenModel(
            f"linear_num_value_heads ({config.num_value_heads}) in {fields.where} is not a multiple of "
            f"linear_num_key_heads ({config.num_key_heads})."
        )
    return config


def _with_experts(decoder: DecoderConfig, fields: Fields, sparse: list[bool]) -> DecoderConfig:
    size = fields.whole("shared_expert_intermediate_size", 512)
    shared = SharedConfig(size, name="shared_expert", gate="shared_expert_gate")
    experts = qwen_experts(fields.with_defaults(moe_intermediate_size=512), decoder)
    return with_experts(decoder, dataclasses.replace(experts, shared=shared), sparse)
