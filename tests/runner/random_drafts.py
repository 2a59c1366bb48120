"""Folders of random drafts in every dialect, for the target of `small`."""

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

HIDDEN, VOCAB, LAYERS, RANK = 32, 264, 2, 6
SIZES = {
    "model_type": "qwen3",
    "hidden_size": HIDDEN,
    "intermediate_size": 24,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "vocab_size": VOCAB,
    "rms_norm_eps": 1e-6,
    "rope_theta": 10_000.0,
    "max_position_embeddings": 256,
}
KEYS = {
    "target_layer_ids": [0, 2],
    "mask_token_id": 258,
    "markov_rank": RANK,
    "markov_head_type": "vanilla",
    "enable_confidence_head": True,
    "confidence_head_with_markov": True,
}


def deepspec(**changes: Any) -> dict[str, Any]:
    of_target = {"architectures": ["Qwen3DSparkModel"], "num_target_layers": 4, "block_size": 3}
    return SIZES | KEYS | of_target | changes


def specforge(**changes: Any) -> dict[str, Any]:
    inner = KEYS | {"projector_type": "dspark", "attention_mode": "full"} | changes
    return SIZES | {"architectures": ["DSparkDraftModel"], "block_size": 3, "dflash_config": inner}


def dflash(**changes: Any) -> dict[str, Any]:
    inner = {name: KEYS[name] for name in ("target_layer_ids", "mask_token_id")}
    return SIZES | {"architectures": ["DFlashDraftModel"], "block_size": 4, "dflash_config": inner} | changes


def bundled(**changes: Any) -> dict[str, Any]:
    keys = {
        "dspark_block_size": 3,
        "dspark_markov_rank": RANK,
        "dspark_noise_token_id": 258,
        "dspark_target_layer_ids": [0, 2],
        "num_nextn_predict_layers": LAYERS,
        "num_hidden_layers": 4,
    }
    return SIZES | {"architectures": ["Qwen3ForCausalLM"]} | keys | changes


def speculators(**changes: Any) -> dict[str, Any]:
    keys = {name: value for name, value in KEYS.items() if name != "target_layer_ids"}
    more = {
        "speculators_model_type": "dspark",
        "aux_hidden_state_layer_ids": [1, 3],  # what goes into a layer: the outputs of 0 and 2
        "block_size": 3,
        "sample_from_anchor": True,
        "transformer_layer_config": SIZES,
    }
    return keys | more | changes


def tensors(
    *, drafted: int = VOCAB, markov: str | None = "vanilla", confidence: bool = True
) -> dict[str, torch.Tensor]:
    """Random weights by published names; `drafted` of the target's tokens, the first of every two."""
    generator = torch.Generator().manual_seed(5)

    def some(*shape: int, around: float = 0.0) -> torch.Tensor:
        return around + 0.3 * torch.randn(shape, generator=generator)

    made = {"fc.weight": some(HIDDEN, 2 * HIDDEN), "hidden_norm.weight": some(HIDDEN, around=1.0)}
    for layer in range(LAYERS):
        of_layer = {
            "self_attn.q_proj.weight": some(32, HIDDEN),
            "self_attn.k_proj.weight": some(16, HIDDEN),
            "self_attn.v_proj.weight": some(16, HIDDEN),
            "self_attn.o_proj.weight": some(HIDDEN, 32),
            "self_attn.q_norm.weight": some(8, around=1.0),
            "self_attn.k_norm.weight": some(8, around=1.0),
            "mlp.gate_proj.weight": some(24, HIDDEN),
            "mlp.up_proj.weight": some(24, HIDDEN),
            "mlp.down_proj.weight": some(HIDDEN, 24),
            "input_layernorm.weight": some(HIDDEN, around=1.0),
            "post_attention_layernorm.weight": some(HIDDEN, around=1.0),
        }
        made |= {f"layers.{layer}.{name}": tensor for name, tensor in of_layer.items()}
    made["norm.weight"] = some(HIDDEN, around=1.0)
    made["embed_tokens.weight"] = torch.full((VOCAB, HIDDEN), torch.nan)  # the target's is used
    if drafted < VOCAB:
        made["lm_head.weight"] = some(drafted, HIDDEN)
        made["d2t"] = torch.arange(drafted)
    if markov is not None:
        made |= {"markov_head.markov_w1.weight": some(VOCAB, RANK), "markov_head.markov_w2.weight": some(drafted, RANK)}
    if markov == "gated":
        made |= {"markov_head.gate_proj.weight": some(RANK, HIDDEN + RANK), "markov_head.gate_proj.bias": some(RANK)}
    if markov == "rnn":
        width = 2 * RANK + HIDDEN
        made |= {"markov_head.joint_proj.weight": some(3 * RANK, width), "markov_head.joint_proj.bias": some(3 * RANK)}
    if confidence:
        rank = 0 if markov is None else RANK
        made |= {"confidence_head.proj.weight": some(1, HIDDEN + rank), "confidence_head.proj.bias": some(1)}
    return made


def staged(published: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The same weights as a target's checkpoint holds them behind its own layers."""
    first = {"fc.weight": "main_proj.weight", "hidden_norm.weight": "main_norm.weight"}
    made = {"model.embed_tokens.weight": torch.zeros(VOCAB, HIDDEN)}
    for name, tensor in published.items():
        if name.startswith("layers."):
            made[name.replace("layers.", "mtp.", 1)] = tensor
        elif name in first:
            made[f"mtp.0.{first[name]}"] = tensor
        elif name != "embed_tokens.weight":
            made[f"mtp.{LAYERS - 1}.{name}"] = tensor
    return made


def write(folder: Path, config: dict[str, Any], weights: dict[str, torch.Tensor]) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    save_file(weights, folder / "model.safetensors")
    return folder


def write_target(folder: Path) -> Path:
    """A small random Llama with the byte tokenizer's vocabulary."""
    from transformers import LlamaConfig, LlamaForCausalLM  # not on every machine that wants the drafts

    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=VOCAB,
        hidden_size=HIDDEN,
        intermediate_size=64,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=256,
        initializer_range=0.3,
        tie_word_embeddings=True,
        eos_token_id=257,
    )
    LlamaForCausalLM(config).save_pretrained(folder)
    return folder
