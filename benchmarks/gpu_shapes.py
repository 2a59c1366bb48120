"""The shapes of models that GPU benchmarks invent weights for, and the products of one decode step.

python benchmarks/gpu_shapes.py llama-3.1-8b FOLDER     # a folder for: serve FOLDER --load-format dummy
"""

import json
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

SHAPES: dict[str, dict[str, object]] = {
    "llama-3.1-8b": {
        "architectures": ["LlamaForCausalLM"],
        "hidden_size": 4096,
        "intermediate_size": 14336,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "vocab_size": 128256,
        "max_position_embeddings": 16384,
        "rope_theta": 500000.0,
    },
    "llama-3.1-70b": {
        "architectures": ["LlamaForCausalLM"],
        "hidden_size": 8192,
        "intermediate_size": 28672,
        "num_hidden_layers": 80,
        "num_attention_heads": 64,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "vocab_size": 128256,
        "max_position_embeddings": 16384,
        "rope_theta": 500000.0,
    },
    "tiny": {
        "architectures": ["LlamaForCausalLM"],
        "hidden_size": 256,
        "intermediate_size": 512,
        "num_hidden_layers": 2,
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "head_dim": 32,
        "vocab_size": 49152,
        "max_position_embeddings": 8192,
        "rope_theta": 10000.0,
    },
    "qwen3-8b": {
        "architectures": ["Qwen3ForCausalLM"],
        "hidden_size": 4096,
        "intermediate_size": 12288,
        "num_hidden_layers": 36,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "vocab_size": 151936,
        "max_position_embeddings": 16384,
        "rope_theta": 1000000.0,
    },
    "smollm2-135m": {
        "architectures": ["LlamaForCausalLM"],
        "hidden_size": 576,
        "intermediate_size": 1536,
        "num_hidden_layers": 30,
        "num_attention_heads": 9,
        "num_key_value_heads": 3,
        "head_dim": 64,
        "vocab_size": 49152,
        "max_position_embeddings": 8192,
        "rope_theta": 100000.0,
        "tie_word_embeddings": True,
    },
}
# For servers alone: a step's floor depends on more than products and keys here.
RECURRENT: dict[str, dict[str, object]] = {
    "qwen3.5-4b": {
        "architectures": ["Qwen3_5ForCausalLM"],
        "hidden_size": 2560,
        "intermediate_size": 9216,
        "num_hidden_layers": 32,
        "num_attention_heads": 16,
        "num_key_value_heads": 4,
        "head_dim": 256,
        "linear_num_key_heads": 16,
        "linear_num_value_heads": 32,
        "vocab_size": 248320,
        "max_position_embeddings": 16384,
        "rope_theta": 10000000.0,
        "tie_word_embeddings": True,
    },
    "falcon-h1-7b": {
        "architectures": ["FalconH1ForCausalLM"],
        "hidden_size": 3072,
        "intermediate_size": 12288,
        "num_hidden_layers": 44,
        "num_attention_heads": 12,
        "num_key_value_heads": 2,
        "head_dim": 128,
        "mamba_d_ssm": 3072,
        "mamba_n_heads": 24,
        "mamba_d_head": 128,
        "mamba_d_state": 256,
        "vocab_size": 130048,
        "max_position_embeddings": 16384,
        "rope_theta": 100000000000.0,
    },
    "lfm2-1.2b": {
        "architectures": ["Lfm2ForCausalLM"],
        "hidden_size": 2048,
        "intermediate_size": 12288,
        "num_hidden_layers": 16,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "full_attn_idxs": [2, 5, 8, 10, 12, 14],
        "vocab_size": 65536,
        "max_position_embeddings": 16384,
        "rope_theta": 1000000.0,
        "tie_word_embeddings": True,
    },
}
COMMON = {"rms_norm_eps": 1e-5, "hidden_act": "silu", "eos_token_id": 2, "tie_word_embeddings": False}


@dataclass(frozen=True, slots=True)
class Shape:
    """What a step's floor depends on."""

    num_layers: int
    products: list[tuple[int, int]]  # outputs, inputs of one layer's products
    head: tuple[int, int]
    kv_bytes: int  # of one token in 16 bits


def shape_of(name: str, ranks: int = 1) -> Shape:
    """The products and KV bytes of a shape, or of one of several ranks' part."""
    config = {key: value for key, value in SHAPES[name].items() if isinstance(value, int)}
    hidden, inner, dim = config["hidden_size"], config["intermediate_size"], config["head_dim"]
    inner //= ranks
    queries, keys = config["num_attention_heads"] // ranks * dim, max(1, config["num_key_value_heads"] // ranks) * dim
    products = [(queries + 2 * keys, hidden), (hidden, queries), (2 * inner, hidden), (hidden, inner)]
    layers = config["num_hidden_layers"]
    return Shape(layers, products, (config["vocab_size"] // ranks, hidden), layers * 2 * keys * 2)


def write_folder(name: str, folder: Path | None = None) -> Path:
    """A folder with the shape's config.json, and a tokenizer that spells every id as a word of its own."""
    folder = folder or Path(tempfile.mkdtemp(prefix=f"{name}-"))
    folder.mkdir(parents=True, exist_ok=True)
    config = COMMON | (SHAPES | RECURRENT)[name]
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "tokenizer.json").write_text(json.dumps(_tokenizer(int(str(config["vocab_size"])))))
    (folder / "tokenizer_config.json").write_text("{}")
    return folder


def _tokenizer(vocab_size: int) -> dict[str, object]:
    bytes_as_letters = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    words = {f"Ġt{index}": index for index in range(vocab_size)}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [],
        "normalizer": None,
        "pre_tokenizer": bytes_as_letters,
        "post_processor": None,
        "decoder": bytes_as_letters,
        "model": {"type": "WordLevel", "vocab": words, "unk_token": "Ġt0"},
    }


if __name__ == "__main__":
    print(write_folder(sys.argv[1], Path(sys.argv[2])))
