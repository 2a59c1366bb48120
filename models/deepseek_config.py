"""Reads the configurations of DeepSeek-V3 and V3.2 and of GLM-MoE-DSA: latents, grouped experts, sparse attention."""

import dataclasses
import math

from corymb.kernels.routing import Routing
from corymb.models.config import DecoderConfig, LayerConfig
from corymb.models.errors import BrokenModel, UnsupportedModel
from corymb.models.experts_config import ExpertsConfig, SharedConfig
from corymb.models.fields import Fields
from corymb.models.latent_config import IndexConfig, LatentConfig
from corymb.models.llama_config import activation
from corymb.models.moe_config import check_gating, check_routing, with_experts
from corymb.models.rope_config import Rope, YarnScaling, extended_context, read_rope

INDEX_TYPES = {"full": "own", "shared": "shared"}


def read_deepseek_v3(fields: Fields) -> DecoderConfig:
    """DeepSeek-V3 and R1: every layer attends to latents."""
    latent = _latent(fields, interleaved=fields.flag("rope_interleave", True))
    return _decoder(fields, latent, groups=(8, 4))


def read_deepseek_v32(fields: Fields) -> DecoderConfig:
    """DeepSeek-V3.2: every layer chooses its keys by an index of its own, whose rope turns halves."""
    latent = _latent(fields, interleaved=fields.flag("rope_interleave", True))
    decoder = _decoder(fields, _with_index(latent, fields, num_heads=64, interleaved=False), groups=(8, 4))
    return _with_indexes(decoder, ["full"] * len(decoder.layers))


def read_glm_moe_dsa(fields: Fields) -> DecoderConfig:
    """GLM-5: some layers take the keys that the layer before them chose."""
    latent = _latent(fields, interleaved=fields.flag("rope_interleave", True))
    latent = _with_index(latent, fields, num_heads=32, interleaved=fields.flag("indexer_rope_interleave", True))
    decoder = _decoder(fields, latent, groups=(1, 1))
    return _with_indexes(decoder, _index_types(fields, len(decoder.layers)))


def _latent(fields: Fields, *, interleaved: bool) -> LatentConfig:
    latent = LatentConfig(
        latent_dim=fields.whole("kv_lora_rank", 512),
        rope_dim=fields.whole("qk_rope_head_dim", 64),
        nope_dim=fields.whole("qk_nope_head_dim", 128),
        value_dim=fields.whole("v_head_dim", 128),
        query_rank=fields.whole("q_lora_rank") if fields.has("q_lora_rank") else None,
        interleaved=interleaved,
    )
    if latent.rope_dim % 2:
        raise BrokenModel(f"qk_rope_head_dim in {fields.where} is odd, {latent.rope_dim}, which rope cannot turn.")
    return latent


def _with_index(latent: LatentConfig, fields: Fields, *, num_heads: int, interleaved: bool) -> LatentConfig:
    if latent.query_rank is None:
        raise BrokenModel(f"{fields.where} lacks q_lora_rank, which the index of sparse attention reads from.")
    index = IndexConfig(
        num_heads=fields.whole("index_n_heads", num_heads),
        head_dim=fields.whole("index_head_dim", 128),
        top_k=fields.whole("index_topk", 2048),
        interleaved=interleaved,
    )
    if index.head_dim < latent.rope_dim:
        raise BrokenModel(
            f"index_head_dim ({index.head_dim}) in {fields.where} is less than qk_rope_head_dim ({latent.rope_dim})."
        )
    return dataclasses.replace(latent, index=index)


def _decoder(fields: Fields, latent: LatentConfig, *, groups: tuple[int, int]) -> DecoderConfig:
    rope = read_rope(fields)
    num_layers = fields.whole("num_hidden_layers")
    biased = fields.flag("attention_bias", False)
    decoder = DecoderConfig(
        family="deepseek",
        vocab_size=fields.whole("vocab_size"),
        context_length=extended_context(rope, fields.whole("max_position_embeddings", 4096), fields),
        hidden_size=fields.whole("hidden_size"),
        intermediate_size=fields.whole("intermediate_size"),
        num_heads=fields.whole("num_attention_heads"),
        num_kv_heads=1,
        head_dim=latent.rope_dim,
        norm_eps=fields.number("rms_norm_eps", 1e-6),
        activation=activation(fields, "hidden_act", "silu"),
        attention_scale=_scale(rope, latent),
        tied=fields.flag("tie_word_embeddings", False),
        layers=(LayerConfig(rope),) * num_layers,
        qkv_bias=biased,
        output_bias=biased,
        latent=latent,
        num_draft_layers=_draft_layers(fields),
    )
    check_gating(decoder)
    return with_experts(decoder, _experts(fields, groups), _sparse(fields, num_layers))


def _draft_layers(fields: Fields) -> int:
    name = "num_nextn_predict_layers"
    return fields.whole(name) if fields.values.get(name) else 0


def _scale(rope: Rope, latent: LatentConfig) -> float:
    scale = 1.0 / math.sqrt(latent.nope_dim + latent.rope_dim)
    if not isinstance(rope.scaling, YarnScaling) or not rope.scaling.mscale_all_dim or rope.scaling.factor <= 1:
        return scale
    widened = 0.1 * rope.scaling.mscale_all_dim * math.log(rope.scaling.factor) + 1.0
    return scale * widened**2


def _experts(fields: Fields, groups: tuple[int, int]) -> ExpertsConfig:
    for name, known in (("scoring_func", "sigmoid"), ("topk_method", "noaux_tc")):
        if fields.text(name, known) != known:
            raise UnsupportedModel(f"{name} {fields.text(name)!r} in {fields.where} is not supported; {known!r} is.")
    count = fields.whole("n_routed_experts") if fields.has("n_routed_experts") else fields.whole("num_experts", 256)
    routing = Routing(
        num_experts=count,
        top_k=fields.whole("num_experts_per_tok", 8),
        scores="sigmoid",
        normalized=fields.flag("norm_topk_prob", True),
        scale=fields.number("routed_scaling_factor", 2.5),
        num_groups=fields.whole("n_group", groups[0]),
        top_groups=fields.whole("topk_group", groups[1]),
    )
    inner = fields.whole("moe_intermediate_size", 2048)
    shared = SharedConfig(inner * fields.whole("n_shared_experts", 1))
    return ExpertsConfig(
        check_routing(routing, fields), inner, shared=shared, correction="gate.e_score_correction_bias"
    )


def _sparse(fields: Fields, num_layers: int) -> list[bool]:
    if fields.whole("moe_layer_freq", 1) != 1:
        raise UnsupportedModel(
            f"moe_layer_freq in {fields.where} must be 1: experts in every layer after the first ones."
        )
    if not fields.has("mlp_layer_types"):
        num_dense = fields.values.get("first_k_dense_replace", 3)
        return [layer >= num_dense for layer in range(num_layers)]
    types = fields.items("mlp_layer_types")
    _check_types(types, {"dense", "sparse"}, num_layers, f"mlp_layer_types in {fields.where}")
    return [kind == "sparse" for kind in types]


def _index_types(fields: Fields, num_layers: int) -> list[str]:
    """Whether each layer has an index of its own, from any of three spellings."""
    if fields.has("indexer_types"):
        return fields.items("indexer_types")
    if fields.has("index_topk_pattern"):
        pattern = fields.values["index_topk_pattern"]
        return [{"F": "full", "S": "shared"}.get(kind, kind) for kind in pattern]
    every, first = fields.whole("index_topk_freq", 1), fields.values.get("index_skip_topk_offset", 2)
    return ["shared" if max(layer - first + 1, 0) % every else "full" for layer in range(num_layers)]


def _with_indexes(decoder: DecoderConfig, types: list[str]) -> DecoderConfig:
    _check_types(types, set(INDEX_TYPES), len(decoder.layers), "indexer_types")
    if types[0] != "full":
        raise BrokenModel("The first layer shares an index, but there is none before it.")
    layers = tuple(
        dataclasses.replace(layer, indexed="own" if kind == "full" else "shared")
        for layer, kind in zip(decoder.layers, types, strict=True)
    )
    return dataclasses.replace(decoder, layers=layers)


def _check_types(types: list[str], known: set[str], num_layers: int, where: str) -> None:
    unknown = [kind for kind in types if kind not in known]
    if unknown:
        raise UnsupportedModel(f"{where}: {unknown[0]!r} is not supported; supported are {', '.join(sorted(known))}.")
    if len(types) != num_layers:
        raise BrokenModel(f"{where} names {len(types)} layers, but the model has {num_layers}.")
