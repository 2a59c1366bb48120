"""What config.json and generation_config.json say, in the spellings that checkpoints use."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from corymb.models.architectures import DECODERS, read_config
from corymb.models.config import DecoderConfig, ModelConfig
from corymb.models.errors import BrokenModel, UnsupportedModel
from corymb.models.rope_config import LinearScaling, Llama3Scaling, Rope, YarnScaling

LLAMA_31 = {
    "architectures": ["LlamaForCausalLM"],
    "bos_token_id": 128000,
    "eos_token_id": [128001, 128008, 128009],
    "hidden_act": "silu",
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "max_position_embeddings": 131072,
    "num_attention_heads": 32,
    "num_hidden_layers": 32,
    "num_key_value_heads": 8,
    "rms_norm_eps": 1e-05,
    "rope_scaling": {
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
        "rope_type": "llama3",
    },
    "rope_theta": 500000.0,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
    "vocab_size": 128256,
}
QWEN3 = {
    "architectures": ["Qwen3ForCausalLM"],
    "bos_token_id": 151643,
    "eos_token_id": 151645,
    "head_dim": 128,
    "hidden_size": 1024,
    "intermediate_size": 3072,
    "max_position_embeddings": 40960,
    "max_window_layers": 28,
    "num_attention_heads": 16,
    "num_hidden_layers": 28,
    "num_key_value_heads": 8,
    "rope_scaling": None,
    "rope_theta": 1000000,
    "sliding_window": None,
    "tie_word_embeddings": True,
    "use_sliding_window": False,
    "vocab_size": 151936,
}
GEMMA_3_4B = {  # leaves much to its defaults
    "architectures": ["Gemma3ForConditionalGeneration"],
    "eos_token_id": [1, 106],
    "text_config": {
        "hidden_size": 2560,
        "intermediate_size": 10240,
        "num_hidden_layers": 34,
        "rope_scaling": {"factor": 8.0, "rope_type": "linear"},
        "sliding_window": 1024,
    },
    "torch_dtype": "bfloat16",
    "vision_config": {"hidden_size": 1152},
}


def read(folder: Path, config: dict[str, Any], generation: dict[str, Any] | None = None) -> ModelConfig:
    """What a folder with these files says."""
    (folder / "config.json").write_text(json.dumps(config))
    if generation is not None:
        (folder / "generation_config.json").write_text(json.dumps(generation))
    return read_config(folder)


def decoder_of(folder: Path, config: dict[str, Any]) -> DecoderConfig:
    """The decoder that a config describes."""
    decoder = read(folder, config).decoder
    assert decoder is not None
    return decoder


def test_llama_31(tmp_path: Path) -> None:
    config = read(tmp_path, LLAMA_31)
    assert (config.vocab_size, config.context_length, config.num_layers) == (128256, 131072, 32)
    assert (config.bos_id, config.dtype, config.window) == (128000, "bfloat16", None)
    assert config.decoder is not None
    assert (config.decoder.num_heads, config.decoder.num_kv_heads, config.decoder.head_dim) == (32, 8, 128)
    assert config.decoder.layers[0].rope == Rope(500000.0, Llama3Scaling(8.0, 1.0, 4.0, 8192))


def test_qwen3_without_a_window(tmp_path: Path) -> None:
    decoder = decoder_of(tmp_path, QWEN3)
    assert decoder.query_key_norm
    assert decoder.tied
    assert {layer.window for layer in decoder.layers} == {None}


def test_gemma_3_with_vision_fills_in_its_defaults(tmp_path: Path) -> None:
    config = read(tmp_path, GEMMA_3_4B)
    assert (config.vocab_size, config.context_length, config.window) == (262_208, 131_072, 1024)
    assert config.eos_ids == {1, 106}
    assert config.decoder is not None
    assert (config.decoder.num_heads, config.decoder.num_kv_heads, config.decoder.head_dim) == (8, 4, 256)
    full = [index for index, layer in enumerate(config.decoder.layers) if layer.window is None]
    assert full == [5, 11, 17, 23, 29]
    assert config.decoder.layers[5].rope == Rope(1_000_000.0, LinearScaling(8.0))
    assert config.decoder.layers[0].rope == Rope(10_000.0)


def test_newer_spelling_says_the_same(tmp_path: Path) -> None:
    new = {name: value for name, value in LLAMA_31.items() if name not in ("rope_scaling", "rope_theta", "torch_dtype")}
    new |= {"rope_parameters": {**LLAMA_31["rope_scaling"], "rope_theta": 500000.0}, "dtype": "bfloat16"}
    assert read(tmp_path, new) == read(tmp_path, LLAMA_31)


def test_oldest_spelling_of_a_rope_type(tmp_path: Path) -> None:
    config = {**LLAMA_31, "rope_scaling": {"type": "linear", "factor": 4.0}, "max_position_embeddings": 4096}
    decoder = decoder_of(tmp_path, config)
    assert decoder.layers[0].rope == Rope(500000.0, LinearScaling(4.0))
    assert decoder.context_length == 16384


def test_yarn_extends_the_context_unless_the_config_says_it_has(tmp_path: Path) -> None:
    yarn = {"rope_type": "yarn", "factor": 4.0}
    bare = decoder_of(tmp_path, {**QWEN3, "rope_scaling": yarn, "max_position_embeddings": 32768})
    assert bare.context_length == 131072
    named = decoder_of(tmp_path, {**QWEN3, "rope_scaling": {**yarn, "original_max_position_embeddings": 32768}})
    assert named.context_length == 40960
    for decoder in (bare, named):
        rope = decoder.layers[0].rope
        assert rope is not None
        assert rope.scaling == YarnScaling(4.0, 32768, 32.0, 1.0, True, None, None, None)


def test_mistral_slides_in_all_layers_or_none(tmp_path: Path) -> None:
    mistral = {**LLAMA_31, "architectures": ["MistralForCausalLM"], "rope_scaling": None}
    assert {layer.window for layer in decoder_of(tmp_path, {**mistral, "sliding_window": 4096}).layers} == {4096}
    assert read(tmp_path, {**mistral, "sliding_window": None}).window is None


def test_qwen2_slides_above_a_layer(tmp_path: Path) -> None:
    qwen2 = {**QWEN3, "architectures": ["Qwen2ForCausalLM"], "sliding_window": 512, "max_window_layers": 3}
    assert read(tmp_path, qwen2).window is None
    windows = [layer.window for layer in decoder_of(tmp_path, {**qwen2, "use_sliding_window": True}).layers]
    assert windows == [None] * 3 + [512] * 25
    listed = ["full_attention", "sliding_attention"] * 14
    chosen = decoder_of(tmp_path, {**qwen2, "use_sliding_window": True, "layer_types": listed})
    assert [layer.window for layer in chosen.layers] == [None, 512] * 14


def test_smollm3_drops_positions_in_every_fourth_layer(tmp_path: Path) -> None:
    smollm3 = {**LLAMA_31, "architectures": ["SmolLM3ForCausalLM"], "rope_scaling": None, "num_hidden_layers": 8}
    without = [layer.rope is None for layer in decoder_of(tmp_path, smollm3).layers]
    assert without == [False, False, False, True] * 2
    listed = {**smollm3, "no_rope_layers": [1, 0, 1, 1, 1, 1, 1, 0]}
    assert [layer.rope is None for layer in decoder_of(tmp_path, listed).layers] == [False, True, *[False] * 5, True]


def test_end_tokens_and_sampling_come_from_both_files(tmp_path: Path) -> None:
    generation = {"eos_token_id": [7, 128001], "temperature": 0.6, "top_p": 0.9, "do_sample": True, "top_k": None}
    config = read(tmp_path, LLAMA_31, generation)
    assert config.eos_ids == {7, 128001, 128008, 128009}
    assert config.sampling == {"temperature": 0.6, "top_p": 0.9}


@pytest.mark.parametrize("name", ["CorymbTape", "CorymbHash", "CorymbUniform"])
def test_models_made_for_tests_have_no_decoder(tmp_path: Path, name: str) -> None:
    tiny = {"architectures": [name], "vocab_size": 264, "eos_token_id": [257, 259], "max_position_embeddings": 8192}
    config = read(tmp_path, tiny)
    assert (config.decoder, config.vocab_size, config.context_length) == (None, 264, 8192)
    assert config.eos_ids == {257, 259}


def test_unknown_architecture_is_named_beside_the_known(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedModel) as raised:
        read(tmp_path, {**LLAMA_31, "architectures": ["MambaForCausalLM"]})
    assert str(raised.value) == (
        f"Architecture MambaForCausalLM is not supported; supported are {', '.join(DECODERS)}."
    )


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"rope_scaling": {"rope_type": "longrope", "factor": 8.0}}, "Rope scaling 'longrope' is not supported"),
        ({"rope_scaling": {"type": "dynamic", "factor": 2.0}}, "supported are default, linear, llama3, yarn"),
        ({"hidden_act": "relu"}, "Activation 'relu' is not supported"),
        ({"quantization_config": {"quant_method": "gptq"}}, "quantized \\(gptq\\)"),
        ({"torch_dtype": "float64"}, "Weights in float64 are not supported"),
        ({"architectures": ["Qwen2ForCausalLM"], "use_sliding_window": True, "layer_types": ["chunked"]}, "'chunked'"),
        ({"architectures": ["Gemma3ForCausalLM"], "use_bidirectional_attention": True}, "Attention to later tokens"),
    ],
)
def test_what_the_server_cannot_do_is_refused(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(UnsupportedModel, match=message):
        read(tmp_path, {**LLAMA_31, **changes})


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"hidden_size": None}, "config.json lacks hidden_size"),
        ({"hidden_size": "4096"}, "hidden_size in config.json must be a whole number above zero, not '4096'"),
        ({"num_hidden_layers": 0}, "num_hidden_layers in config.json must be a whole number above zero, not 0"),
        ({"num_hidden_layers": True}, "must be a whole number above zero, not True"),
        ({"num_key_value_heads": 5}, "is not a multiple of num_key_value_heads \\(5\\)"),
        ({"head_dim": 63}, "odd size, 63"),
        ({"rms_norm_eps": -1}, "rms_norm_eps in config.json must be a number above zero"),
        ({"eos_token_id": "</s>"}, "eos_token_id in config.json must be a token id or a list of them, not '</s>'"),
        ({"architectures": []}, "must name one architecture"),
        ({"architectures": None}, "config.json lacks architectures"),
        ({"tie_word_embeddings": "yes"}, "must be true or false"),
        ({"rope_scaling": {"rope_type": "linear"}}, "rope_scaling of config.json lacks factor"),
        ({"rope_scaling": [8]}, "rope_scaling in config.json must be an object"),
    ],
)
def test_what_is_wrong_with_a_config_is_said(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(BrokenModel, match=message):
        read(tmp_path, {**LLAMA_31, **changes})


def test_folder_without_a_config_is_no_model(tmp_path: Path) -> None:
    with pytest.raises(BrokenModel, match="is not a model folder: it has no config"):
        read_config(tmp_path)


@pytest.mark.parametrize("text", ["", "{", "[]", "\x00"])
def test_damaged_config_is_named(tmp_path: Path, text: str) -> None:
    (tmp_path / "config.json").write_text(text)
    with pytest.raises(BrokenModel, match=r"config\.json"):
        read_config(tmp_path)


def test_reading_a_config_imports_no_torch() -> None:
    modules = "architectures, headers, inventory, precision"
    code = f"from corymb.models import {modules}; import sys; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-P", "-c", code], check=False).returncode == 0
