"""GGUF files become folders of Hugging Face's form."""

import json
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file
from tokenizers import Tokenizer

from corymb.models.errors import SourceError
from corymb.models.gguf import convert_gguf


def convert(model, tmp_path: Path) -> Path:
    folder = tmp_path / "out"
    folder.mkdir()
    convert_gguf(model.write(tmp_path / "model.gguf"), folder)
    return folder


def config_of(folder: Path) -> dict:
    return json.loads((folder / "config.json").read_text())


def permuted(rows: np.ndarray, num_heads: int) -> np.ndarray:
    """What llama.cpp's own converter does to the rows of query and key projections."""
    shape = rows.shape
    return rows.reshape(num_heads, 2, shape[0] // num_heads // 2, *shape[1:]).swapaxes(1, 2).reshape(shape)


def test_weights_keep_their_values_and_get_new_names(tiny, tmp_path: Path) -> None:
    model = tiny("qwen2")
    for name in ("q", "k", "v"):
        model.tensors[f"blk.0.attn_{name}.bias"] = np.arange(32 if name == "q" else 16, dtype=np.float32)
    tensors = load_file(convert(model, tmp_path) / "model.safetensors")
    assert len(tensors) == len(model.tensors)
    pairs = {
        "model.embed_tokens.weight": "token_embd.weight",
        "model.norm.weight": "output_norm.weight",
        "model.layers.1.self_attn.q_proj.weight": "blk.1.attn_q.weight",
        "model.layers.0.self_attn.k_proj.bias": "blk.0.attn_k.bias",
        "model.layers.1.self_attn.o_proj.weight": "blk.1.attn_output.weight",
        "model.layers.1.mlp.down_proj.weight": "blk.1.ffn_down.weight",
        "model.layers.0.input_layernorm.weight": "blk.0.attn_norm.weight",
        "model.layers.0.post_attention_layernorm.weight": "blk.0.ffn_norm.weight",
    }
    for new, old in pairs.items():
        np.testing.assert_array_equal(tensors[new], model.tensors[old])


def test_llama_query_and_key_rows_return_to_their_order(tiny, tmp_path: Path) -> None:
    model = tiny()
    query, key = model.tensors["blk.0.attn_q.weight"], model.tensors["blk.0.attn_k.weight"]
    model.tensors["blk.0.attn_q.weight"] = permuted(query, model.heads)
    model.tensors["blk.0.attn_k.weight"] = permuted(key, model.kv_heads)
    tensors = load_file(convert(model, tmp_path) / "model.safetensors")
    np.testing.assert_array_equal(tensors["model.layers.0.self_attn.q_proj.weight"], query)
    np.testing.assert_array_equal(tensors["model.layers.0.self_attn.k_proj.weight"], key)
    np.testing.assert_array_equal(
        tensors["model.layers.0.self_attn.v_proj.weight"], model.tensors["blk.0.attn_v.weight"]
    )


def test_half_precision_stays_half(tiny, tmp_path: Path) -> None:
    model = tiny()
    for name in list(model.tensors):
        if model.tensors[name].ndim == 2:
            model.tensors[name] = model.tensors[name].astype(np.float16)
    folder = convert(model, tmp_path)
    tensors = load_file(folder / "model.safetensors")
    assert tensors["model.embed_tokens.weight"].dtype == np.float16
    assert tensors["model.norm.weight"].dtype == np.float32
    np.testing.assert_array_equal(tensors["model.embed_tokens.weight"], model.tensors["token_embd.weight"])
    assert config_of(folder)["dtype"] == "float16"


def gemma(tiny):
    model = tiny("gemma3")
    model.metadata |= {"gemma3.attention.key_length": 8, "gemma3.attention.sliding_window": 16}
    model.metadata["gemma3.block_count"] = 7
    rng = np.random.default_rng(1)
    for layer in range(7):
        for name in ("post_attention_norm", "post_ffw_norm", "attn_q_norm", "attn_k_norm"):
            width = 8 if name.startswith("attn") else 32
            model.tensors[f"blk.{layer}.{name}.weight"] = rng.standard_normal(width, dtype=np.float32)
    return model


def test_gemma_norms_lose_the_added_one_and_find_their_places(tiny, tmp_path: Path) -> None:
    model = gemma(tiny)
    tensors = load_file(convert(model, tmp_path) / "model.safetensors")
    pairs = {
        "model.norm.weight": "output_norm.weight",
        "model.layers.0.input_layernorm.weight": "blk.0.attn_norm.weight",
        "model.layers.0.post_attention_layernorm.weight": "blk.0.post_attention_norm.weight",
        "model.layers.1.pre_feedforward_layernorm.weight": "blk.1.ffn_norm.weight",
        "model.layers.1.post_feedforward_layernorm.weight": "blk.1.post_ffw_norm.weight",
        "model.layers.1.self_attn.q_norm.weight": "blk.1.attn_q_norm.weight",
    }
    for new, old in pairs.items():
        np.testing.assert_array_equal(tensors[new], model.tensors[old] - np.float32(1))
    query = model.tensors["blk.0.attn_q.weight"]
    np.testing.assert_array_equal(tensors["model.layers.0.self_attn.q_proj.weight"], query)


def test_gemma_config_names_its_two_kinds_of_layers(tiny, tmp_path: Path) -> None:
    config = config_of(convert(gemma(tiny), tmp_path))
    assert config["architectures"] == ["Gemma3ForCausalLM"]
    assert config["layer_types"] == ["sliding_attention"] * 5 + ["full_attention", "sliding_attention"]
    assert (config["sliding_window"], config["rope_theta"], config["rope_local_base_freq"]) == (16, 500000.0, 10000.0)
    assert (config["head_dim"], config["query_pre_attn_scalar"]) == (8, 8)


@pytest.mark.parametrize(
    ("architecture", "name"),
    [("llama", "LlamaForCausalLM"), ("qwen2", "Qwen2ForCausalLM"), ("qwen3", "Qwen3ForCausalLM")],
)
def test_config_says_what_the_metadata_says(tiny, tmp_path: Path, architecture: str, name: str) -> None:
    model = tiny(architecture)
    config = config_of(convert(model, tmp_path))
    assert config["architectures"] == [name]
    expected = {
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 8,
        "max_position_embeddings": 128,
        "vocab_size": 259,
        "rms_norm_eps": 1e-5,
        "rope_theta": 500000.0,
        "rope_scaling": None,
        "tie_word_embeddings": True,
        "eos_token_id": 0,
        "dtype": "float32",
    }
    assert {key: config[key] for key in expected} == expected


def test_own_output_head_unties_the_embeddings(tiny, tmp_path: Path) -> None:
    model = tiny()
    model.tensors["output.weight"] = model.tensors["token_embd.weight"] * np.float32(2)
    folder = convert(model, tmp_path)
    assert config_of(folder)["tie_word_embeddings"] is False
    np.testing.assert_array_equal(
        load_file(folder / "model.safetensors")["lm_head.weight"], model.tensors["output.weight"]
    )


def test_every_end_token_ends_generation(tiny, tmp_path: Path) -> None:
    model = tiny()
    model.metadata |= {"tokenizer.ggml.eot_token_id": 5, "tokenizer.ggml.bos_token_id": 3}
    folder = convert(model, tmp_path)
    assert json.loads((folder / "generation_config.json").read_text()) == {"bos_token_id": 3, "eos_token_id": [0, 5]}


def llama3_divisors(factor: float) -> np.ndarray:
    """The divisors as Llama 3.1's reference code computes them for 8-wide heads."""
    divisors = []
    for index in range(0, 8, 2):
        wavelength = 2 * np.pi * 500000.0 ** (index / 8)
        if wavelength < 8192 / 4:
            divisors.append(1.0)
        elif wavelength > 8192:
            divisors.append(factor)
        else:
            smooth = (8192 / wavelength - 1) / 3
            divisors.append(1 / ((1 - smooth) / factor + smooth))
    return np.array(divisors, np.float32)


def test_llama3_rope_scaling_is_read_back_from_its_divisors(tiny, tmp_path: Path) -> None:
    model = tiny()
    model.tensors["rope_freqs.weight"] = llama3_divisors(32.0)
    folder = convert(model, tmp_path)
    assert config_of(folder)["rope_scaling"] == {
        "rope_type": "llama3",
        "factor": 32.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    }
    assert not [name for name in load_file(folder / "model.safetensors") if "rope" in name]


def test_unknown_rope_divisors_are_refused(tiny, tmp_path: Path) -> None:
    model = tiny()
    model.tensors["rope_freqs.weight"] = np.array([1, 2, 3, 4], np.float32)
    with pytest.raises(SourceError, match="rope_freqs"):
        convert(model, tmp_path)


def test_linear_rope_scaling_is_kept(tiny, tmp_path: Path) -> None:
    model = tiny()
    model.metadata |= {"llama.rope.scaling.type": "linear", "llama.rope.scaling.factor": 4.0}
    assert config_of(convert(model, tmp_path))["rope_scaling"] == {"rope_type": "linear", "factor": 4.0}


def test_progress_reaches_the_whole(tiny, tmp_path: Path) -> None:
    seen: list[tuple[int, int]] = []
    (tmp_path / "out").mkdir()
    path = tiny().write(tmp_path / "model.gguf")
    convert_gguf(path, tmp_path / "out", lambda what, done, total: seen.append((done, total)))
    assert seen == sorted(seen)
    assert seen[-1][0] == seen[-1][1] == sum(array.nbytes for array in tiny().tensors.values())


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"general.architecture": "mamba"}, "'mamba'"),
        ({"general.architecture": "llama", "llama.expert_count": 8}, "mixture of experts"),
        ({"split.count": 3}, "several parts"),
        ({"tokenizer.ggml.pre": "klingon"}, "'klingon'"),
        ({"tokenizer.ggml.model": "rwkv"}, "'rwkv'"),
        ({"tokenizer.ggml.model": "llama"}, "scores"),
        ({"llama.rope.scaling.type": "su", "llama.rope.scaling.factor": 2.0}, "'su'"),
        ({"llama.block_count": "many"}, "llama.block_count"),
    ],
)
def test_files_that_cannot_be_served_say_why(tiny, tmp_path: Path, change: dict, words: str) -> None:
    model = tiny()
    model.metadata |= change
    with pytest.raises(SourceError, match=words):
        convert(model, tmp_path)


def test_unknown_tensor_is_named(tiny, tmp_path: Path) -> None:
    model = tiny()
    model.tensors["blk.0.attn_sinks.weight"] = np.ones(4, np.float32)
    with pytest.raises(SourceError, match=r"blk\.0\.attn_sinks\.weight"):
        convert(model, tmp_path)


def test_no_room_on_disk_is_said_before_work(tiny, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr("shutil.disk_usage", lambda path: type("Usage", (), {"free": 1000})())
    with pytest.raises(SourceError, match="GiB are free"):
        convert(tiny(), tmp_path)


def test_text_of_another_kind_is_no_gguf_file(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    for content in (b"", b"PK\3\4 a zip", b"GGUF", b"GGUF\1\0\0\0" + b"\0" * 16):
        path = tmp_path / "x.gguf"
        path.write_bytes(content)
        with pytest.raises(SourceError):
            convert_gguf(path, tmp_path / "out")


@pytest.mark.parametrize("seed", range(40))
def test_damaged_files_are_refused_in_words(tiny, tmp_path: Path, seed: int) -> None:
    rng = np.random.default_rng(seed)
    content = bytearray(tiny().to_bytes())
    if seed % 2:
        del content[rng.integers(1, len(content)) :]
    for _ in range(1 + seed % 3):
        content[rng.integers(0, min(len(content), 6000))] = rng.integers(256)  # the part with structure
    (tmp_path / "x.gguf").write_bytes(content)
    (tmp_path / "out").mkdir()
    try:
        convert_gguf(tmp_path / "x.gguf", tmp_path / "out")
    except SourceError as error:
        words = str(error)
    else:
        words = "Some changes do no harm."
    assert words.endswith(".")


def encode(folder: Path, text: str) -> list[str]:
    return Tokenizer.from_file(str(folder / "tokenizer.json")).encode(text).tokens


def test_byte_level_vocabulary_becomes_a_tokenizer(tiny, tmp_path: Path) -> None:
    folder = convert(tiny(), tmp_path)
    assert encode(folder, " ab é<|end|>") == ["Ġab", "Ġ", "Ã", "©", "<|end|>"]
    assert json.loads((folder / "tokenizer_config.json").read_text())["eos_token"] == "<|end|>"


def test_first_token_is_added_where_the_metadata_asks(tiny, tmp_path: Path) -> None:
    model = tiny()
    model.metadata |= {"tokenizer.ggml.bos_token_id": 0, "tokenizer.ggml.add_bos_token": True}
    assert encode(convert(model, tmp_path), "a") == ["<|end|>", "a"]


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        ("gpt-2", ["x", "Ġ12345", "'s", "Ġ", "Ġ!!"]),
        ("smollm", ["x", "Ġ", "1", "2", "3", "4", "5", "'s", "Ġ", "Ġ!!"]),
        ("llama-bpe", ["x", "Ġ", "123", "45", "'s", "Ġ", "Ġ!!"]),
        ("qwen2", ["x", "Ġ", "1", "2", "3", "4", "5", "'s", "Ġ", "Ġ!!"]),
        ("tekken", ["x", "Ġ", "1", "2", "3", "4", "5", "'s", "Ġ", "Ġ!!"]),
    ],
)
def test_each_kind_splits_words_in_its_own_way(tiny, tmp_path: Path, kind: str, words: list[str]) -> None:
    model = tiny()
    model.metadata["tokenizer.ggml.pre"] = kind
    tokenizer = Tokenizer.from_file(str(convert(model, tmp_path) / "tokenizer.json"))
    split = tokenizer.pre_tokenizer.pre_tokenize_str("x 12345's  !!")
    assert [word for word, _ in split] == words


def sentencepiece(tiny, *, adds_space: bool):
    model = tiny()
    pieces = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    kinds = [2, 3, 3] + [6] * 256
    scores = [0.0] * 259
    for rank, piece in enumerate(["ab", "▁ab", "▁a", "bc", "▁", "a", "b", "c"]):
        pieces.append(piece)
        kinds.append(1)
        scores.append(-float(rank))
    pieces.append("▁▁")
    kinds.append(4)
    scores.append(-1000.0)
    model.metadata |= {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": pieces,
        "tokenizer.ggml.token_type": kinds,
        "tokenizer.ggml.scores": scores,
        "tokenizer.ggml.unknown_token_id": 0,
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.add_space_prefix": adds_space,
    }
    model.tensors["token_embd.weight"] = np.zeros((len(pieces), 32), np.float32)
    return model


def test_sentencepiece_vocabulary_merges_by_score(tiny, tmp_path: Path) -> None:
    folder = convert(sentencepiece(tiny, adds_space=False), tmp_path)
    # "bc" would be possible, but "ab" has the better score.
    assert encode(folder, "abc ab") == ["<s>", "ab", "c", "▁ab"]
    assert encode(folder, "a  b é") == ["<s>", "a", "▁▁", "b", "▁", "<0xC3>", "<0xA9>"]


def test_sentencepiece_with_a_space_in_front(tiny, tmp_path: Path) -> None:
    folder = convert(sentencepiece(tiny, adds_space=True), tmp_path)
    assert encode(folder, "ab") == ["<s>", "▁ab"]
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    assert tokenizer.decode(tokenizer.encode("ab c").ids) == "ab c"
