"""Reads the configurations of Llama and the models that follow it."""

import dataclasses
from typing import Literal

from corymb.models.config import DecoderConfig, LayerConfig
from corymb.models.errors import BrokenModel, UnsupportedModel
from corymb.models.fields import Fields
from corymb.models.rope_config import extended_context, read_rope

LAYER_TYPES = ("full_attention", "sliding_attention")


def read_llama(fields: Fields) -> DecoderConfig:
    """Llama 1 to 3.x, SmolLM, and whatever else calls itself LlamaForCausalLM."""
    biased = fields.flag("attention_bias", False)
    decoder = decoder_of(fields, default_context=2048)
    return dataclasses.replace(decoder, qkv_bias=biased, output_bias=biased, mlp_bias=fields.flag("mlp_bias", False))


def read_mistral(fields: Fields) -> DecoderConfig:
    """Mistral: all layers slide, or none."""
    decoder = decoder_of(fields, default_context=131_072)
    if not fields.has("sliding_window"):
        return decoder
    return with_windows(decoder, fields, [True] * len(decoder.layers))


def read_qwen2(fields: Fields) -> DecoderConfig:
    """Qwen2 and 2.5: biased projections to queries, keys and values."""
    decoder = decoder_of(fields, default_context=32_768)
    decoder = dataclasses.replace(decoder, qkv_bias=True)
    return with_windows(decoder, fields, _qwen_sliding(fields, len(decoder.layers)))


def read_qwen3(fields: Fields) -> DecoderConfig:
    """Qwen3: normed queries and keys."""
    biased = fields.flag("attention_bias", False)
    decoder = decoder_of(fields, default_context=32_768, default_head_dim=128)
    decoder = dataclasses.replace(decoder, qkv_bias=biased, output_bias=biased, query_key_norm=True)
    return with_windows(decoder, fields, _qwen_sliding(fields, len(decoder.layers)))


def read_smollm3(fields: Fields) -> DecoderConfig:
    """SmolLM3: every fourth layer sees no positions."""
    biased = fields.flag("attention_bias", False)
    decoder = decoder_of(fields, default_context=32_768, default_theta=2_000_000.0, default_tied=True)
    turns = _turning(fields, len(decoder.layers))
    layers = tuple(
        layer if turn else dataclasses.replace(layer, rope=None)
        for layer, turn in zip(decoder.layers, turns, strict=True)
    )
    decoder = dataclasses.replace(
        decoder, qkv_bias=biased, output_bias=biased, mlp_bias=fields.flag("mlp_bias", False), layers=layers
    )
    sliding = [not turn for turn in turns] if fields.flag("use_sliding_window", False) else [False] * len(turns)
    return with_windows(decoder, fields, sliding_layers(fields, len(turns), sliding))


def sliding_layers(fields: Fields, num_layers: int, default: list[bool]) -> list[bool]:
    """Which layers slide: `layer_types` says, or else the model's own rule."""
    if not fields.has("layer_types"):
        return default
    types = fields.items("layer_types")
    unknown = [kind for kind in types if kind not in LAYER_TYPES]
    if unknown:
        raise UnsupportedModel(
            f"Layers of type {unknown[0]!r} are not supported; supported are {', '.join(LAYER_TYPES)}."
        )
    if len(types) != num_layers:
        raise BrokenModel(f"layer_types in {fields.where} names {len(types)} layers, but the model has {num_layers}.")
    return [kind == "sliding_attention" for kind in types]


def activation(fields: Fields, name: str, default: str) -> Literal["silu", "gelu_tanh"]:
    """The name of the MLP's activation, as kernels call it."""
    known: dict[str, Literal["silu", "gelu_tanh"]]
    known = {"silu": "silu", "swish": "silu", "gelu_pytorch_tanh": "gelu_tanh", "gelu_tanh": "gelu_tanh"}
    value = fields.text(name, default)
    if value not in known:
        raise UnsupportedModel(f"Activation {value!r} is not supported; supported are {', '.join(known)}.")
    return known[value]


def check_heads(decoder: DecoderConfig, fields: Fields) -> DecoderConfig:
    """Returns the decoder if its heads divide as they must."""
    if decoder.num_heads % decoder.num_kv_heads:
        raise BrokenModel(
            f"num_attention_heads ({decoder.num_heads}) in {fields.where} is not a multiple of "
            f"num_key_value_heads ({decoder.num_kv_heads})."
        )
    if decoder.head_dim % 2:
        raise BrokenModel(f"The heads of {fields.where} have an odd size, {decoder.head_dim}, which rope cannot turn.")
    for rope in {layer.rope for layer in decoder.layers if layer.rope is not None}:
        turned = rope.num_rotated(decoder.head_dim)
        if not 0 < turned <= decoder.head_dim or turned % 2:
            raise BrokenModel(f"{fields.where} turns {turned} of {decoder.head_dim} dimensions of each head.")
    return decoder


def decoder_of(
    fields: Fields,
    *,
    default_context: int,
    default_head_dim: int | None = None,
    default_theta: float = 10_000.0,
    default_tied: bool = False,
    default_rotated: float = 1.0,
) -> DecoderConfig:
    """What Llama and its followers have in common."""
    hidden_size = fields.whole("hidden_size")
    num_heads = fields.whole("num_attention_heads")
    head_dim = fields.whole("head_dim", default_head_dim or max(1, hidden_size // num_heads))
    rope = read_rope(fields, default_theta, default_rotated)
    decoder = DecoderConfig(
        family="llama",
        vocab_size=fields.whole("vocab_size"),
        context_length=extended_context(rope, fields.whole("max_position_embeddings", default_context), fields),
        hidden_size=hidden_size,
        intermediate_size=fields.whole("intermediate_size"),
        num_heads=num_heads,
        num_kv_heads=fields.whole("num_key_value_heads", num_heads),
        head_dim=head_dim,
        norm_eps=fields.number("rms_norm_eps", 1e-6),
        activation=activation(fields, "hidden_act", "silu"),
        attention_scale=head_dim**-0.5,
        tied=fields.flag("tie_word_embeddings", default_tied),
        layers=(LayerConfig(rope),) * fields.whole("num_hidden_layers"),
    )
    return check_heads(decoder, fields)


def with_windows(decoder: DecoderConfig, fields: Fields, sliding: list[bool]) -> DecoderConfig:
    """The decoder with windows in some of its layers."""
    if not any(sliding):
        return decoder
    window = fields.whole("sliding_window")
    layers = tuple(
        dataclasses.replace(layer, window=window) if slides else layer
        for layer, slides in zip(decoder.layers, sliding, strict=True)
    )
    return dataclasses.replace(decoder, layers=layers)


def _qwen_sliding(fields: Fields, num_layers: int) -> list[bool]:
    if not fields.flag("use_sliding_window", False):
        return [False] * num_layers
    first = fields.values.get("max_window_layers", 28)
    return sliding_layers(fields, num_layers, [layer >= first for layer in range(num_layers)])


def _turning(fields: Fields, num_layers: int) -> list[bool]:
    if not fields.has("no_rope_layers"):
        interval = fields.whole("no_rope_layer_interval", 4)
        return [(layer + 1) % interval != 0 for layer in range(num_layers)]
    turns = fields.items("no_rope_layers")
    if len(turns) < num_layers:
        raise BrokenModel(f"no_rope_layers in {fields.where} names {len(turns)} of {num_layers} layers.")
    return [bool(turn) for turn in turns[:num_layers]]
