"""Reads the configurations of Mixtral, Qwen3-MoE and gpt-oss: Llama's layers with routed experts."""

import dataclasses

from corymb.kernels.routing import Gating, Routing
from corymb.models.config import DecoderConfig
from corymb.models.errors import BrokenModel, UnsupportedModel
from corymb.models.experts_config import ExpertsConfig
from corymb.models.fields import Fields
from corymb.models.llama_config import decoder_of, sliding_layers, with_windows


def read_mixtral(fields: Fields) -> DecoderConfig:
    """Mixtral: experts in every layer; all layers slide, or none."""
    decoder = decoder_of(fields, default_context=131_072, default_theta=1_000_000.0)
    check_gating(decoder)
    routing = Routing(fields.whole("num_local_experts", 8), fields.whole("num_experts_per_tok", 2))
    experts = ExpertsConfig(
        check_routing(routing, fields), decoder.intermediate_size, block="block_sparse_moe", parts=("w1", "w3", "w2")
    )
    decoder = with_experts(decoder, experts, [True] * len(decoder.layers))
    return with_windows(decoder, fields, [fields.has("sliding_window")] * len(decoder.layers))


def read_qwen3_moe(fields: Fields) -> DecoderConfig:
    """Qwen3-MoE: normed queries and keys; layers may be dense by number."""
    biased = fields.flag("attention_bias", False)
    decoder = decoder_of(fields, default_context=32_768, default_head_dim=128)
    decoder = dataclasses.replace(decoder, qkv_bias=biased, output_bias=biased, query_key_norm=True)
    decoder = with_experts(decoder, qwen_experts(fields, decoder), qwen_sparse(fields, len(decoder.layers)))
    return with_windows(decoder, fields, [fields.flag("use_sliding_window", False)] * len(decoder.layers))


def read_gpt_oss(fields: Fields) -> DecoderConfig:
    """gpt-oss: sinks, every other layer slides, biases everywhere, and experts with a clamped gate."""
    biased = fields.flag("attention_bias", True)
    decoder = decoder_of(fields, default_context=131_072, default_head_dim=64, default_theta=150_000.0)
    decoder = dataclasses.replace(decoder, qkv_bias=biased, output_bias=biased, sinks=True)
    check_gating(decoder)
    routing = Routing(fields.whole("num_local_experts", 128), fields.whole("num_experts_per_tok", 4))
    slope, limit = fields.number("swiglu_alpha", 1.702), fields.number("swiglu_limit", 7.0)
    experts = ExpertsConfig(
        check_routing(routing, fields),
        decoder.intermediate_size,
        Gating(slope=slope, lift=1.0, limit=limit),
        bias=True,
        router="router",
        router_bias=True,
        form="interleaved",
    )
    num_layers = len(decoder.layers)
    decoder = with_experts(decoder, experts, [True] * num_layers)
    sliding = sliding_layers(fields, num_layers, [layer % 2 == 0 for layer in range(num_layers)])
    return with_windows(decoder, fields, sliding)


def qwen_experts(fields: Fields, decoder: DecoderConfig) -> ExpertsConfig:
    """The experts of Qwen's models, without those that all tokens share."""
    check_gating(decoder)
    count = fields.whole("num_experts") if fields.has("num_experts") else fields.whole("num_local_experts", 128)
    routing = Routing(count, fields.whole("num_experts_per_tok", 8), normalized=fields.flag("norm_topk_prob", False))
    return ExpertsConfig(check_routing(routing, fields), fields.whole("moe_intermediate_size", 768))


def qwen_sparse(fields: Fields, num_layers: int) -> list[bool]:
    """Which of Qwen's layers are sparse."""
    step = fields.whole("decoder_sparse_step", 1)
    dense = fields.items("mlp_only_layers") if fields.has("mlp_only_layers") else []
    return [layer not in dense and (layer + 1) % step == 0 for layer in range(num_layers)]


def with_experts(decoder: DecoderConfig, experts: ExpertsConfig, sparse: list[bool]) -> DecoderConfig:
    """The decoder with experts in some of its layers."""
    layers = tuple(
        dataclasses.replace(layer, sparse=is_sparse) for layer, is_sparse in zip(decoder.layers, sparse, strict=True)
    )
    return dataclasses.replace(decoder, layers=layers, experts=experts)


def check_routing(routing: Routing, fields: Fields) -> Routing:
    """Returns the routing if it can be followed."""
    count = routing.num_experts
    if count % routing.num_groups:
        raise BrokenModel(f"{count} experts in {fields.where} do not divide into {routing.num_groups} groups.")
    if routing.top_groups > routing.num_groups:
        raise BrokenModel(
            f"{fields.where} chooses experts from {routing.top_groups} groups, but has {routing.num_groups}."
        )
    if routing.num_groups > 1 and routing.group_size < 2:
        raise BrokenModel(f"Groups of experts in {fields.where} have one expert each; a choice among them needs two.")
    if routing.top_k > routing.top_groups * routing.group_size:
        raise BrokenModel(
            f"num_experts_per_tok ({routing.top_k}) in {fields.where} is more than the "
            f"{routing.top_groups * routing.group_size} experts that may be chosen."
        )
    return routing


def check_gating(decoder: DecoderConfig) -> None:
    """Experts have silu in them."""
    if decoder.activation != "silu":
        raise UnsupportedModel(f"Experts with activation {decoder.activation!r} are not supported; silu is.")
