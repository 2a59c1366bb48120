"""Tiny random models of every family against transformers: logits, and the tokens that greedy decoding picks."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from transformers import PretrainedConfig, PreTrainedModel

from corymb.kernels.torch_attention import TorchAttention
from corymb.models.architectures import read_config
from corymb.models.load import LoadOptions, load_model
from corymb.models.sequences import Sequences

SIZES = {
    "vocab_size": 97,
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "initializer_range": 0.3,  # large enough that logits differ and a wrong term shows
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 500.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
YARN = {"rope_type": "yarn", "rope_theta": 1000.0, "factor": 4.0, "original_max_position_embeddings": 64}
GEMMA3_ROPE = {
    "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e6},
    "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
}
QWEN3_MOE = {"head_dim": 16, "num_experts": 8, "num_experts_per_tok": 3, "moe_intermediate_size": 24}
DELTA_NET = {
    "initializer_range": 0.1,  # norms of small sums magnify rounding, in transformers as here
    "num_hidden_layers": 4,
    "head_dim": 32,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 24,
}
QWEN3_NEXT = {**DELTA_NET, **QWEN3_MOE, "head_dim": 32, "shared_expert_intermediate_size": 40}
LFM2 = {
    "num_hidden_layers": 4,
    "layer_types": ["conv", "full_attention", "conv", "conv"],
    "block_multiple_of": 16,
    "tie_word_embeddings": True,
}
FALCON_H1 = {
    "mamba_d_ssm": 64,
    "mamba_n_heads": 4,
    "mamba_d_head": 16,
    "mamba_n_groups": 2,
    "mamba_d_state": 24,
    "mamba_chunk_size": 64,
}
MULTIPLIERS = {
    "embedding_multiplier": 3.5,
    "lm_head_multiplier": 0.3,
    "attention_in_multiplier": 0.8,
    "attention_out_multiplier": 0.6,
    "key_multiplier": 0.4,
    "ssm_in_multiplier": 0.7,
    "ssm_out_multiplier": 1.3,
    "ssm_multipliers": [0.5, 0.9, 1.1, 0.6, 1.2],
    "mlp_multipliers": [0.7, 1.4],
}
GPT_OSS = {"head_dim": 16, "sliding_window": 24, "num_local_experts": 6, "num_experts_per_tok": 3}
DEEPSEEK = {
    "num_key_value_heads": 6,
    "q_lora_rank": 20,
    "kv_lora_rank": 24,
    "qk_nope_head_dim": 14,
    "qk_rope_head_dim": 8,
    "v_head_dim": 10,
    "first_k_dense_replace": 1,
    "n_routed_experts": 8,
    "num_experts_per_tok": 3,
    "n_group": 4,
    "topk_group": 2,
    "n_shared_experts": 2,
    "moe_intermediate_size": 24,
}
# transformers takes any of equal keys. Many heads, and no token without an embedding: then none that matter are equal.
INDEX = {"index_topk": 24, "index_n_heads": 24, "index_head_dim": 16, "pad_token_id": None}
YARN_BOTH = {**YARN, "mscale": 1.0, "mscale_all_dim": 1.0}
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama 2": ("Llama", {"num_key_value_heads": 6}),
    "llama with biases": ("Llama", {"attention_bias": True, "mlp_bias": True, "head_dim": 16}),
    "llama 3.1": ("Llama", {"rope_parameters": LLAMA3}),
    "llama, linear rope": ("Llama", {"rope_parameters": {"rope_type": "linear", "factor": 3.0, "rope_theta": 1e4}}),
    "llama, yarn": ("Llama", {"rope_parameters": YARN}),
    "llama, yarn, untruncated": ("Llama", {"rope_parameters": {**YARN, "truncate": False, "beta_fast": 16.0}}),
    "llama, yarn, mscale": ("Llama", {"rope_parameters": {**YARN, "mscale": 0.7, "mscale_all_dim": 1.1}}),
    "smollm, tied": ("Llama", {"tie_word_embeddings": True, "rope_theta": 1e5}),
    "mistral": ("Mistral", {"sliding_window": None}),
    "mistral, sliding": ("Mistral", {"sliding_window": 24}),
    "qwen2": ("Qwen2", {}),
    "qwen2, sliding": ("Qwen2", {"use_sliding_window": True, "sliding_window": 24, "max_window_layers": 1}),
    "qwen3": ("Qwen3", {"head_dim": 16}),
    "qwen3, sliding": (
        "Qwen3",
        {"head_dim": 16, "use_sliding_window": True, "sliding_window": 24, "max_window_layers": 2},
    ),
    "smollm3": ("SmolLM3", {"no_rope_layer_interval": 2}),
    "mixtral": ("Mixtral", {"num_local_experts": 6, "num_experts_per_tok": 2}),
    "mixtral, sliding": ("Mixtral", {"num_local_experts": 4, "num_experts_per_tok": 3, "sliding_window": 24}),
    "qwen3 moe": ("Qwen3Moe", {**QWEN3_MOE, "norm_topk_prob": True}),
    "qwen3 moe, partly dense": (
        "Qwen3Moe",
        {**QWEN3_MOE, "decoder_sparse_step": 2, "use_sliding_window": True, "sliding_window": 24},
    ),
    "qwen3-next": ("Qwen3Next", QWEN3_NEXT),
    "qwen3-next, partly dense": ("Qwen3Next", {**QWEN3_NEXT, "mlp_only_layers": [1], "norm_topk_prob": False}),
    "qwen3.5": ("Qwen3_5Text", DELTA_NET),
    "qwen3.5 moe": ("Qwen3_5MoeText", QWEN3_NEXT),
    "falcon-h1": ("FalconH1", FALCON_H1),
    "falcon-h1, multiplied": ("FalconH1", {**FALCON_H1, **MULTIPLIERS}),
    "falcon-h1, normed": (
        "FalconH1",
        {**FALCON_H1, **MULTIPLIERS, "mamba_rms_norm": True, "attention_bias": True, "mlp_bias": True},
    ),
    "falcon-h1, gated before its norm": (
        "FalconH1",
        {
            **FALCON_H1,
            **MULTIPLIERS,
            "mamba_rms_norm": True,
            "mamba_norm_before_gate": False,
            "mamba_proj_bias": True,
            "projectors_bias": True,
            "mamba_conv_bias": False,
            "time_step_limit": [0.3, 1.1],
        },
    ),
    "lfm2": ("Lfm2", LFM2),
    "lfm2 with biases": ("Lfm2", {**LFM2, "conv_bias": True, "conv_L_cache": 4, "block_auto_adjust_ff_dim": False}),
    "lfm2 moe": (
        "Lfm2Moe",
        {**LFM2, "num_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 24, "num_dense_layers": 1},
    ),
    "gpt-oss": ("GptOss", GPT_OSS),
    "gpt-oss, tight gates": ("GptOss", {**GPT_OSS, "swiglu_limit": 0.5, "swiglu_alpha": 1.1, "rope_parameters": YARN}),
    "deepseek v3": ("DeepseekV3", DEEPSEEK),
    "deepseek v3, yarn": (
        "DeepseekV3",
        {**DEEPSEEK, "rope_parameters": YARN_BOTH},
    ),
    "deepseek v3, queries at once": ("DeepseekV3", {**DEEPSEEK, "q_lora_rank": None, "rope_interleave": False}),
    "deepseek v3, biases": ("DeepseekV3", {**DEEPSEEK, "attention_bias": True, "norm_topk_prob": False}),
    "deepseek v3.2": ("DeepseekV32", {**DEEPSEEK, **INDEX}),
    "glm moe dsa": ("GlmMoeDsa", {**DEEPSEEK, **INDEX, "n_group": 1, "topk_group": 1, "num_hidden_layers": 4}),
    "glm moe dsa, shared index": (
        "GlmMoeDsa",
        {**DEEPSEEK, **INDEX, "num_hidden_layers": 4, "indexer_types": ["full", "shared", "full", "shared"]},
    ),
    "gemma 2": ("Gemma2", {"head_dim": 16, "sliding_window": 24, "query_pre_attn_scalar": 12}),
    "gemma 3": ("Gemma3Text", {"head_dim": 16, "sliding_window": 24, "layer_types": None, "sliding_window_pattern": 2}),
    "gemma 3, scaled rope": (
        "Gemma3Text",
        {"head_dim": 16, "sliding_window": 24, "rope_parameters": GEMMA3_ROPE, "query_pre_attn_scalar": 20},
    ),
}
PROMPT_LENGTHS = (1, 9, 40, 77, 150)  # some longer than windows, chunks and the original contexts
CHUNK = 32
NUM_OUTPUTS = 12
ATOL = 2e-5


@pytest.mark.parametrize("name", CASES)
def test_family_equals_transformers(name: str, tmp_path: Path) -> None:
    family, changes = CASES[name]
    reference = make_reference(family, changes)
    reference.save_pretrained(tmp_path)
    config = read_config(tmp_path)
    assert config.decoder is not None
    model = load_model(tmp_path, config, LoadOptions())

    prompts = {row: random_prompt(row, length) for row, length in enumerate(PROMPT_LENGTHS, start=1)}
    expected = {row: greedy(reference, prompt) for row, prompt in prompts.items()}
    sequences = Sequences.empty(model.attention_specs, model.state_specs, num_rows=len(prompts) + 1, context_length=256)
    attention = TorchAttention()
    outputs: dict[int, list[int]] = {row: [] for row in prompts}
    # Chunks of prompts beside rows that decode already: a row moves on as soon as its prompt is through.
    while waiting := {row: ids for row, ids in next_tokens(prompts, outputs, sequences).items() if ids}:
        starts = {row: int(sequences.lengths[row]) for row in waiting}
        hidden = sequences.step(model, attention, waiting)
        logits = model.logits(hidden).split([len(ids) for ids in waiting.values()])
        for row, of_row in zip(waiting, logits, strict=True):
            wanted = expected[row].logits[starts[row] : starts[row] + len(of_row)]
            torch.testing.assert_close(of_row, wanted, atol=ATOL * scale(wanted), rtol=0)
            if sequences.lengths[row] >= len(prompts[row]):
                outputs[row].append(int(of_row[-1].argmax()))
    assert outputs == {row: run.outputs for row, run in expected.items()}


@dataclass
class Greedy:
    """What transformers makes of a prompt."""

    outputs: list[int]
    logits: torch.Tensor  # at every position but the last output's


def greedy(reference: PreTrainedModel, prompt: list[int]) -> Greedy:
    """Picks the likeliest token again and again, each time from the whole sequence."""
    ids = list(prompt)
    for _ in range(NUM_OUTPUTS):
        with torch.no_grad():
            logits = reference(torch.tensor([ids])).logits[0]
        ids.append(int(logits[-1].argmax()))
    return Greedy(ids[len(prompt) :], logits)


def next_tokens(prompts: dict, outputs: dict, sequences: Sequences) -> dict[int, list[int]]:
    """The next chunk of each row: of its prompt, or the token it gave last."""
    chunks = {}
    for row, prompt in prompts.items():
        done = int(sequences.lengths[row])
        known = prompt + outputs[row]
        chunks[row] = [] if len(outputs[row]) == NUM_OUTPUTS else known[done : min(done + CHUNK - row, len(known))]
    return chunks


def make_reference(family: str, changes: dict[str, Any]) -> PreTrainedModel:
    """A random model in float32 with the plainest attention."""
    config_class: Callable[..., PretrainedConfig] = getattr(transformers, f"{family}Config")
    config = config_class(**{**SIZES, **changes})
    architecture = f"{family.removesuffix('Text')}ForCausalLM"
    torch.manual_seed(0)
    model = getattr(transformers, architecture)._from_config(config, attn_implementation="eager")
    for name, parameter in model.named_parameters():  # norms start at one, or zero, and would hide mistakes
        if name.endswith(("norm.weight", "bias", "sinks")):
            torch.nn.init.normal_(parameter, mean=parameter.mean().item(), std=0.2)
    return model.eval()


def random_prompt(seed: int, length: int) -> list[int]:
    """Token ids, special ones excluded."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(3, SIZES["vocab_size"], (length,), generator=generator).tolist()


def scale(logits: torch.Tensor) -> float:
    """How large logits are, at least 1."""
    return max(1.0, float(logits.abs().max()))


def test_experts_of_a_checkpoint_may_lie_stacked_or_apart(tmp_path: Path) -> None:
    make_reference(*CASES["qwen3.5 moe"]).save_pretrained(tmp_path)
    apart = load_model(tmp_path, read_config(tmp_path), LoadOptions())
    file = tmp_path / "model.safetensors"
    tensors = load_file(file)
    for layer in range(DELTA_NET["num_hidden_layers"]):
        name = f"model.layers.{layer}.mlp.experts"
        gates, ups, downs = (
            torch.stack([tensors.pop(f"{name}.{expert}.{part}_proj.weight") for expert in range(8)])
            for part in ("gate", "up", "down")
        )
        tensors |= {f"{name}.gate_up_proj": torch.cat((gates, ups), dim=1), f"{name}.down_proj": downs}
    save_file(tensors, file)
    stacked = load_model(tmp_path, read_config(tmp_path), LoadOptions())
    said = []
    for model in (apart, stacked):
        sequences = Sequences.empty(model.attention_specs, model.state_specs, num_rows=2, context_length=64)
        said.append(model.logits(sequences.step(model, TorchAttention(), {1: random_prompt(1, 30)})))
    assert torch.equal(*said)
