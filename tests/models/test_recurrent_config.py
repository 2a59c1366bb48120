"""What config.json says of models that carry a state, in the spellings of their checkpoints."""

import json
import math
from pathlib import Path
from typing import Any

import pytest

from corymb.models.architectures import read_config
from corymb.models.config import DecoderConfig
from corymb.models.errors import BrokenModel, UnsupportedModel
from corymb.models.inventory import expected_tensors
from corymb.models.recurrent_config import DeltaNetConfig, Mamba2Config, ShortConvolutionConfig
from corymb.models.rope_config import Rope

QWEN3_NEXT_80B = {
    "architectures": ["Qwen3NextForCausalLM"],
    "decoder_sparse_step": 1,
    "eos_token_id": 151645,
    "full_attention_interval": 4,
    "head_dim": 256,
    "hidden_act": "silu",
    "hidden_size": 2048,
    "intermediate_size": 5120,
    "linear_conv_kernel_dim": 4,
    "linear_key_head_dim": 128,
    "linear_num_key_heads": 16,
    "linear_num_value_heads": 32,
    "linear_value_head_dim": 128,
    "max_position_embeddings": 262144,
    "mlp_only_layers": [],
    "moe_intermediate_size": 512,
    "norm_topk_prob": True,
    "num_attention_heads": 16,
    "num_experts": 512,
    "num_experts_per_tok": 10,
    "num_hidden_layers": 48,
    "num_key_value_heads": 2,
    "partial_rotary_factor": 0.25,
    "rope_scaling": None,
    "rope_theta": 10000000,
    "shared_expert_intermediate_size": 512,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
    "vocab_size": 151936,
}
QWEN35_VISION = {
    "architectures": ["Qwen3_5ForConditionalGeneration"],
    "tie_word_embeddings": True,
    "text_config": {
        "attn_output_gate": True,
        "eos_token_id": 248044,
        "head_dim": 256,
        "hidden_size": 1024,
        "intermediate_size": 3584,
        "layer_types": ["linear_attention", "linear_attention", "linear_attention", "full_attention"] * 6,
        "linear_num_key_heads": 16,
        "linear_num_value_heads": 16,
        "max_position_embeddings": 262144,
        "num_attention_heads": 8,
        "num_hidden_layers": 24,
        "num_key_value_heads": 2,
        "rope_parameters": {
            "mrope_interleaved": True,
            "mrope_section": [11, 11, 10],
            "partial_rotary_factor": 0.25,
            "rope_theta": 10000000,
            "rope_type": "default",
        },
        "vocab_size": 248320,
    },
    "vision_config": {"depth": 12},
}
FALCON_H1_05B = {
    "architectures": ["FalconH1ForCausalLM"],
    "attention_in_multiplier": 1.0,
    "attention_out_multiplier": 0.9375,
    "embedding_multiplier": 5.656854249492381,
    "head_dim": 64,
    "hidden_size": 1024,
    "intermediate_size": 2048,
    "key_multiplier": 0.39062499999999994,
    "lm_head_multiplier": 0.0390625,
    "mamba_conv_bias": True,
    "mamba_d_conv": 4,
    "mamba_d_head": 64,
    "mamba_d_ssm": 1536,
    "mamba_d_state": 128,
    "mamba_n_groups": 1,
    "mamba_n_heads": 24,
    "mamba_norm_before_gate": False,
    "mamba_rms_norm": False,
    "max_position_embeddings": 16384,
    "mlp_multipliers": [0.8838834764831844, 0.5859375],
    "num_attention_heads": 8,
    "num_hidden_layers": 36,
    "num_key_value_heads": 2,
    "rope_theta": 100000000000.0,
    "ssm_multipliers": [0.3535533905932738, 0.25, 0.3535533905932738, 0.5, 0.3535533905932738],
    "time_step_limit": [0.0, {"__float__": "Infinity"}],
    "vocab_size": 32784,
}
LFM2_12B = {
    "architectures": ["Lfm2ForCausalLM"],
    "block_auto_adjust_ff_dim": True,
    "block_ff_dim": 12288,
    "block_ffn_dim_multiplier": 1.0,
    "block_multiple_of": 256,
    "conv_L_cache": 3,
    "conv_bias": False,
    "full_attn_idxs": [2, 5, 8, 10, 12, 14],
    "hidden_size": 2048,
    "max_position_embeddings": 128000,
    "norm_eps": 1e-05,
    "num_attention_heads": 32,
    "num_hidden_layers": 16,
    "num_key_value_heads": 8,
    "rope_theta": 1000000.0,
    "vocab_size": 65536,
}
LFM2_MOE = {
    **{name: value for name, value in LFM2_12B.items() if not name.startswith(("block", "full"))},
    "architectures": ["Lfm2MoeForCausalLM"],
    "intermediate_size": 7168,
    "layer_types": ["conv", "conv", "full_attention", "conv"] * 6,
    "moe_intermediate_size": 1792,
    "num_experts": 32,
    "num_hidden_layers": 24,
}


def decoder_of(folder: Path, config: dict[str, Any]) -> DecoderConfig:
    (folder / "config.json").write_text(json.dumps(config))
    decoder = read_config(folder).decoder
    assert decoder is not None
    return decoder


@pytest.mark.parametrize(
    ("config", "billions"),
    [(QWEN3_NEXT_80B, 79.67), (QWEN35_VISION, 0.752), (FALCON_H1_05B, 0.521), (LFM2_12B, 1.170), (LFM2_MOE, 8.34)],
    ids=lambda value: value["architectures"][0] if isinstance(value, dict) else "",
)
def test_tensors_add_up_to_the_size_of_the_published_model(tmp_path: Path, config: dict, billions: float) -> None:
    shapes = expected_tensors(decoder_of(tmp_path, config)).values()
    assert sum(math.prod(shape) for shape in shapes) / 1e9 == pytest.approx(billions, rel=2e-3)


def test_qwen3_next(tmp_path: Path) -> None:
    decoder = decoder_of(tmp_path, QWEN3_NEXT_80B)
    assert [index for index, layer in enumerate(decoder.layers) if layer.attends] == list(range(3, 48, 4))
    assert decoder.layers[3].rope == Rope(10_000_000.0, rotated=0.25)
    assert decoder.layers[0].recurrent == DeltaNetConfig(16, 32, 128, 128, width=4, grouped=True)
    assert decoder.layers[3].recurrent is None
    assert all(layer.sparse for layer in decoder.layers)
    assert (decoder.output_gate, decoder.norm_offset, decoder.query_key_norm) == (True, 1.0, True)
    assert decoder.experts is not None
    assert (decoder.experts.routing.top_k, decoder.experts.routing.normalized) == (10, True)
    assert (decoder.num_attending(8), decoder.num_states(8)) == (2, 12)


def test_qwen35_takes_its_text_part_and_the_outer_word_on_tying(tmp_path: Path) -> None:
    decoder = decoder_of(tmp_path, QWEN35_VISION)
    assert decoder.tied
    assert decoder.layers[3].rope == Rope(10_000_000.0, rotated=0.25)
    assert decoder.layers[0].recurrent == DeltaNetConfig(16, 16, 128, 128, width=4, grouped=False)


def test_falcon_h1(tmp_path: Path) -> None:
    decoder = decoder_of(tmp_path, FALCON_H1_05B)
    mamba = decoder.layers[35].recurrent
    assert isinstance(mamba, Mamba2Config)
    assert (mamba.size, mamba.num_channels, mamba.most_step) == (1536, 1792, math.inf)
    assert decoder.layers[35].attends
    assert (decoder.embedding_scale, decoder.logit_scale) == (5.656854249492381, 0.0390625)
    derived = {**FALCON_H1_05B, "mamba_d_head": "auto", "mamba_d_ssm": None, "mamba_expand": 2, "mamba_n_heads": 32}
    mamba = decoder_of(tmp_path, derived).layers[0].recurrent
    assert isinstance(mamba, Mamba2Config)
    assert (mamba.size, mamba.head_dim) == (2048, 64)


def test_lfm2_derives_the_size_of_its_mlp(tmp_path: Path) -> None:
    decoder = decoder_of(tmp_path, LFM2_12B)
    assert (decoder.intermediate_size, decoder.tied, decoder.norm_eps) == (8192, True, 1e-5)
    assert [index for index, layer in enumerate(decoder.layers) if layer.attends] == [2, 5, 8, 10, 12, 14]
    assert decoder.layers[0].recurrent == ShortConvolutionConfig(2048, width=3, bias=False)
    assert decoder_of(tmp_path, {**LFM2_12B, "block_ffn_dim_multiplier": 1.01}).intermediate_size == 8448
    assert decoder_of(tmp_path, {**LFM2_12B, "block_auto_adjust_ff_dim": False}).intermediate_size == 12288


def test_lfm2_with_experts_begins_with_dense_layers(tmp_path: Path) -> None:
    decoder = decoder_of(tmp_path, {**LFM2_MOE, "num_dense_layers": 3})
    assert [layer.sparse for layer in decoder.layers] == [False] * 3 + [True] * 21
    assert decoder.experts is not None
    assert decoder.experts.correction == "expert_bias"


@pytest.mark.parametrize(
    ("config", "error", "message"),
    [
        ({**QWEN3_NEXT_80B, "linear_num_key_heads": 5}, BrokenModel, "is not a multiple of linear_num_key_heads"),
        ({**QWEN3_NEXT_80B, "layer_types": ["mamba"] * 48}, UnsupportedModel, "'mamba' are not supported"),
        ({**QWEN3_NEXT_80B, "layer_types": ["full_attention"]}, BrokenModel, "names 1 layers, but the model has 48"),
        ({**QWEN3_NEXT_80B, "linear_conv_kernel_dim": 1}, UnsupportedModel, "convolutions over one token"),
        ({**QWEN3_NEXT_80B, "partial_rotary_factor": 1.5}, BrokenModel, "turns 384 of 256 dimensions"),
        ({**FALCON_H1_05B, "mamba_n_heads": 23}, BrokenModel, "23 heads of 64 in config.json are not the 1536 inputs"),
        ({**FALCON_H1_05B, "mamba_n_groups": 5}, BrokenModel, "do not divide into mamba_n_groups"),
        ({**FALCON_H1_05B, "ssm_multipliers": [1.0]}, BrokenModel, "must be a list of 5 numbers"),
        ({**FALCON_H1_05B, "time_step_limit": [0.0, "inf"]}, BrokenModel, "time_step_limit in config.json must be a n"),
    ],
)
def test_what_cannot_be_is_said(tmp_path: Path, config: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        decoder_of(tmp_path, config)
