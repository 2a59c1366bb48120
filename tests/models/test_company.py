"""A decoding row gives the same bits alone and beside any others, through whole models."""

import json
from pathlib import Path

import pytest
import torch

from corymb.kernels.torch_attention import TorchAttention
from corymb.models.architectures import read_config
from corymb.models.decoder import Decoder
from corymb.models.load import LoadOptions, load_model
from corymb.models.precision import WeightType
from corymb.models.sequences import Sequences

SIZES = {"vocab_size": 1000, "num_hidden_layers": 2, "max_position_embeddings": 128}
LLAMA = {
    **SIZES,
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 576,
    "intermediate_size": 1536,
    "num_attention_heads": 9,
    "num_key_value_heads": 3,
    "tie_word_embeddings": True,
}
GEMMA = {
    **SIZES,
    "architectures": ["Gemma3ForCausalLM"],
    "hidden_size": 640,
    "intermediate_size": 2048,
    "num_attention_heads": 4,
    "num_key_value_heads": 1,
    "sliding_window": 20,
    "layer_types": ["sliding_attention", "full_attention"],
}
MIXTRAL = {
    **LLAMA,
    "architectures": ["MixtralForCausalLM"],
    "intermediate_size": 320,
    "num_local_experts": 6,
    "num_experts_per_tok": 3,
}
DEEPSEEK = {
    **SIZES,
    "architectures": ["DeepseekV32ForCausalLM"],
    "hidden_size": 320,
    "intermediate_size": 448,
    "num_attention_heads": 5,
    "q_lora_rank": 96,
    "kv_lora_rank": 64,
    "qk_nope_head_dim": 32,
    "qk_rope_head_dim": 16,
    "v_head_dim": 32,
    "n_routed_experts": 8,
    "n_group": 4,
    "topk_group": 2,
    "num_experts_per_tok": 3,
    "moe_intermediate_size": 96,
    "first_k_dense_replace": 1,
    "index_topk": 20,
    "index_n_heads": 4,
    "index_head_dim": 32,
}
GPT_OSS = {
    **MIXTRAL,
    "architectures": ["GptOssForCausalLM"],
    "head_dim": 64,
    "sliding_window": 20,
}
QWEN35 = {
    **SIZES,
    "architectures": ["Qwen3_5ForCausalLM"],
    "full_attention_interval": 2,
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "linear_num_key_heads": 4,
    "linear_num_value_heads": 8,
}
FALCON_H1 = {
    **SIZES,
    "architectures": ["FalconH1ForCausalLM"],
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "mamba_d_ssm": 512,
    "mamba_n_heads": 8,
    "mamba_d_state": 128,
}
PROMPTS = {
    row: [(31 * row + 7 * index) % 1000 for index in range(length)] for row, length in [(1, 5), (2, 33), (3, 60)]
}
COMPANY = [(1,), (3, 1), (1, 2, 3), (2, 3, 1), tuple(range(1, 18)), tuple(range(33, 0, -1))]


@pytest.mark.parametrize("weights", ["float32", "float16", "int8"])
@pytest.mark.parametrize(
    "config",
    [LLAMA, GEMMA, MIXTRAL, GPT_OSS, DEEPSEEK, QWEN35, FALCON_H1],
    ids=["llama", "gemma", "mixtral", "gpt-oss", "deepseek", "qwen3.5", "falcon-h1"],
)
def test_row_gives_the_same_bits_in_any_company(tmp_path: Path, config: dict, weights: WeightType) -> None:
    (tmp_path / "config.json").write_text(json.dumps(config))
    model = load_model(tmp_path, read_config(tmp_path), LoadOptions(load_format="dummy", weights=weights))
    alone, *others = (first_row_logits(model, rows) for rows in COMPANY)
    for rows, logits in zip(COMPANY[1:], others, strict=True):
        assert torch.equal(logits, alone), rows


def first_row_logits(model: Decoder, rows: tuple[int, ...]) -> torch.Tensor:
    """Row 1's logits over three decode steps beside `rows`, whose prompts were computed one by one."""
    sequences = Sequences.empty(model.attention_specs, model.state_specs, num_rows=40, context_length=64)
    attention = TorchAttention()
    for row in rows:
        sequences.step(model, attention, {row: PROMPTS.get(row, [row, 2 * row, 3 * row])})
    steps = [
        model.logits(sequences.step(model, attention, {row: [5 * row + step] for row in rows})) for step in range(3)
    ]
    return torch.stack([logits[rows.index(1)] for logits in steps])
