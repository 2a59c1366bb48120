"""Reads the configurations of Gemma 2 and 3."""

import dataclasses

from corymb.models.config import DecoderConfig, LayerConfig
from corymb.models.errors import UnsupportedModel
from corymb.models.fields import Fields
from corymb.models.llama_config import activation, check_heads, sliding_layers
from corymb.models.rope_config import read_rope, read_rope_of


def read_gemma2(fields: Fields) -> DecoderConfig:
    """Gemma 2: every other layer slides; attention and logits are soft-capped."""
    rope = read_rope(fields)
    decoder = _decoder(fields, vocab_size=256_000, context_length=8192)
    slides = [(layer + 1) % 2 != 0 for layer in range(fields.whole("num_hidden_layers", 26))]
    slides = sliding_layers(fields, len(slides), slides)
    window = fields.whole("sliding_window", 4096)
    return dataclasses.replace(
        decoder,
        layers=tuple(LayerConfig(rope, window if slide else None) for slide in slides),
        attention_soft_cap=fields.number("attn_logit_softcapping", 50.0),
        logit_soft_cap=fields.number("final_logit_softcapping", 30.0),
    )


def read_gemma3(fields: Fields) -> DecoderConfig:
    """Gemma 3: five layers in six slide and have a rope of their own."""
    full = LayerConfig(read_rope_of(fields, "full_attention", "rope_theta", 1_000_000.0))
    sliding_rope = read_rope_of(fields, "sliding_attention", "rope_local_base_freq", 10_000.0)
    sliding = LayerConfig(sliding_rope, fields.whole("sliding_window", 4096))
    pattern = fields.whole("sliding_window_pattern", 6)
    slides = [(layer + 1) % pattern != 0 for layer in range(fields.whole("num_hidden_layers", 26))]
    slides = sliding_layers(fields, len(slides), slides)
    return dataclasses.replace(
        _decoder(fields, vocab_size=262_208, context_length=131_072),
        layers=tuple(sliding if slide else full for slide in slides),
        query_key_norm=True,
        attention_soft_cap=_optional(fields, "attn_logit_softcapping"),
        logit_soft_cap=_optional(fields, "final_logit_softcapping"),
    )


def read_gemma3_with_vision(fields: Fields) -> DecoderConfig:
    """The text part of a Gemma 3 that also reads images."""
    return read_gemma3(fields.inner("text_config"))


def _decoder(fields: Fields, *, vocab_size: int, context_length: int) -> DecoderConfig:
    if fields.flag("use_bidirectional_attention", False):
        raise UnsupportedModel("Attention to later tokens (use_bidirectional_attention) is not supported.")
    biased, hidden_size = fields.flag("attention_bias", False), fields.whole("hidden_size", 2304)
    decoder = DecoderConfig(
        family="gemma",
        vocab_size=fields.whole("vocab_size", vocab_size),
        context_length=fields.whole("max_position_embeddings", context_length),
        hidden_size=hidden_size,
        intermediate_size=fields.whole("intermediate_size", 9216),
        num_heads=fields.whole("num_attention_heads", 8),
        num_kv_heads=fields.whole("num_key_value_heads", 4),
        head_dim=fields.whole("head_dim", 256),
        norm_eps=fields.number("rms_norm_eps", 1e-6),
        activation=activation(fields, "hidden_activation", "gelu_pytorch_tanh"),
        attention_scale=fields.number("query_pre_attn_scalar", 256) ** -0.5,
        tied=fields.flag("tie_word_embeddings", True),
        layers=(),
        qkv_bias=biased,
        output_bias=biased,
        norm_offset=1.0,
        embedding_scale=hidden_size**0.5,
    )
    return check_heads(decoder, fields)


def _optional(fields: Fields, name: str) -> float | None:
    return fields.number(name) if fields.has(name) else None
