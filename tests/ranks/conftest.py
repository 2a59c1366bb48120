"""Tiny models with random weights, for servers of one and of several ranks."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from corymb.models.architectures import read_config
from corymb.models.inventory import expected_tensors
from corymb.models.toy_folders import VOCAB_SIZE, write_byte_tokenizer

BASE = {
    "vocab_size": VOCAB_SIZE,
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,  # fewer than four ranks: two share a head
    "head_dim": 16,
    "max_position_embeddings": 1024,
    "eos_token_id": 257,
    "tie_word_embeddings": False,  # tied, random weights repeat what they read
}
MODELS = {
    "llama": BASE | {"architectures": ["LlamaForCausalLM"], "attention_bias": True, "mlp_bias": True},
    "drafted": BASE  # of the sizes that random drafts are made for
    | {
        "architectures": ["LlamaForCausalLM"],
        "hidden_size": 32,
        "num_hidden_layers": 4,
    },
    "qwen3": BASE | {"architectures": ["Qwen3ForCausalLM"]},
    "qwen3-moe": BASE
    | {
        "architectures": ["Qwen3MoeForCausalLM"],
        "num_experts": 4,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 32,
        "norm_topk_prob": True,
        "mlp_only_layers": [0],
        "decoder_sparse_step": 1,
    },
    "qwen3.5": BASE
    | {
        "architectures": ["Qwen3_5ForCausalLM"],
        "num_hidden_layers": 4,
        "layer_types": ["linear_attention", "linear_attention", "full_attention", "linear_attention"],
        "linear_num_key_heads": 4,
        "linear_num_value_heads": 8,
        "linear_key_head_dim": 16,
        "linear_value_head_dim": 16,
    },
    "gemma3": BASE
    | {
        "architectures": ["Gemma3ForCausalLM"],
        "num_hidden_layers": 3,
        "sliding_window": 12,
        "sliding_window_pattern": 3,
        "query_pre_attn_scalar": 16,
    },
}


def write_model(name: str, folder: Path, **changes: object) -> Path:
    """A model folder. Its weights are large enough that the best score stands well above the second."""
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(MODELS[name] | changes))
    write_byte_tokenizer(folder)
    decoder = read_config(folder).decoder
    assert decoder is not None
    numbers = torch.Generator().manual_seed(3)
    tensors = {}
    for tensor, shape in expected_tensors(decoder).items():
        spread = 3.0 * shape[-1] ** -0.5 if len(shape) > 1 else 0.2
        tensors[tensor] = spread * torch.randn(shape, generator=numbers)
        if tensor.endswith("norm.weight") and name != "gemma3":
            tensors[tensor] += 1
    save_file(tensors, folder / "model.safetensors")
    return folder


@pytest.fixture(scope="session")
def tiny(tmp_path_factory):
    """The path of a tiny model, or the name of one of the toys: `tiny("llama")`, `tiny("hash")`."""
    made: dict[str, str] = {}

    def tiny(name: str) -> str:
        if name not in MODELS:
            return f"corymb/{name}"
        if name not in made:
            made[name] = str(write_model(name, tmp_path_factory.mktemp("tiny") / name))
        return made[name]

    return tiny
