"""Text to token ids and back."""

import json
from pathlib import Path

import numpy as np
import pytest
import tokenizers
from tokenizers import AddedToken, decoders, models, normalizers, pre_tokenizers

from corymb.models.errors import BrokenModel
from corymb.serve.tokenizer import Tokenizer, byte_tokenizer, load_tokenizer


def load(tokenizer: tokenizers.Tokenizer, folder: Path, config: dict | None = None) -> Tokenizer:
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps(config or {}))
    return load_tokenizer(folder)


def byte_level() -> tokenizers.Tokenizer:
    pieces = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocab = {piece: index for index, piece in enumerate([*pieces, "Ġa"])}
    tokenizer = tokenizers.Tokenizer(models.BPE(vocab, [("Ġ", "a")]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(["<s>", "</s>"])
    tokenizer.add_tokens([AddedToken("größe X", normalized=False)])
    return tokenizer


def marked(*, adds_space: bool) -> tokenizers.Tokenizer:
    pieces = ["<unk>", *(f"<0x{byte:02X}>" for byte in range(256)), "▁", "a", "b", "▁a"]
    vocab = {piece: index for index, piece in enumerate(pieces)}
    model = models.BPE(vocab, [("▁", "a")], unk_token="<unk>", fuse_unk=True, byte_fallback=True)
    tokenizer = tokenizers.Tokenizer(model)
    steps = [normalizers.Replace(" ", "▁")]
    chain = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    if adds_space:
        steps.insert(0, normalizers.Prepend("▁"))
        chain.append(decoders.Strip(" ", 1, 0))
    tokenizer.normalizer = normalizers.Sequence(steps)
    tokenizer.decoder = decoders.Sequence(chain)
    tokenizer.add_special_tokens(["<s>"])
    return tokenizer


@pytest.mark.parametrize(
    "text", ["", "ab", "é", "A😀👍🏽é한", "a<eos>b", "<think></think>", "<|im_start|>user\n", "<bos"]
)
def test_byte_tokenizer_gives_texts_back(text: str) -> None:
    tokenizer = byte_tokenizer()
    assert tokenizer.decode(tokenizer.encode(text), skip_special_tokens=False) == text


def test_byte_tokenizer_has_the_ids_of_its_table() -> None:
    tokenizer = byte_tokenizer()
    names = ["<bos>", "<eos>", "<|im_start|>", "<|im_end|>", "<think>", "</think>", "<tool_call>", "</tool_call>"]
    assert [tokenizer.encode(name) for name in names] == [[index] for index in range(256, 264)]
    assert tokenizer.encode("é<eos>x") == [195, 169, 257, 120]
    assert (tokenizer.vocab_size, tokenizer.bos_id, tokenizer.eos_id) == (264, 256, 257)
    assert [tokenizer.is_special(index) for index in (0, 255, 256, 263)] == [False, False, True, True]
    assert tokenizer.decode([97, 257, 98]) == "ab"


def test_tokens_are_spelled_as_bytes() -> None:
    tokenizer = byte_tokenizer()
    assert (tokenizer.token_bytes(0xE9), tokenizer.token_text(0xE9)) == (b"\xe9", "\ufffd")
    assert (tokenizer.token_bytes(257), tokenizer.token_text(257)) == (b"<eos>", "<eos>")
    assert tokenizer.token_bytes(264) == tokenizer.token_bytes(-1) == b""


def test_half_of_a_surrogate_pair_becomes_a_replacement_character(tmp_path: Path) -> None:
    for tokenizer in (byte_tokenizer(), load(byte_level(), tmp_path)):
        text = json.loads('"a\\ud83d b\\ude00\\ud83d\\ude00"')
        assert tokenizer.decode(tokenizer.encode(text)) == "a\ufffd b\ufffd😀"


def test_byte_level_vocabulary_is_spelled_in_bytes(tmp_path: Path) -> None:
    raw = byte_level()
    tokenizer = load(raw, tmp_path, {"bos_token": "<s>", "eos_token": {"content": "</s>", "lstrip": False}})
    assert (tokenizer.bos_token, tokenizer.eos_token) == ("<s>", "</s>")
    assert (tokenizer.bos_id, tokenizer.eos_id) == (raw.token_to_id("<s>"), raw.token_to_id("</s>"))
    ids = tokenizer.encode("a a é größe X</s>")
    assert b"".join(map(tokenizer.token_bytes, ids)) == "a a é größe X</s>".encode()
    assert tokenizer.decode(ids) == "a a é größe X"
    assert tokenizer.is_special(raw.token_to_id("größe X")) is False


def test_byte_level_decoding_equals_the_library_for_any_ids(tmp_path: Path) -> None:
    raw = byte_level()
    tokenizer = load(raw, tmp_path)
    rng = np.random.default_rng(1)
    for _ in range(300):
        ids = rng.integers(0, raw.token_to_id("größe X"), 12).tolist()
        for skip in (True, False):
            assert tokenizer.decode(ids, skip_special_tokens=skip) == raw.decode(ids, skip_special_tokens=skip)


@pytest.mark.parametrize("adds_space", [True, False])
def test_marked_vocabulary_is_spelled_in_bytes(tmp_path: Path, adds_space: bool) -> None:
    raw = marked(adds_space=adds_space)
    tokenizer = load(raw, tmp_path)
    for text in ["a b", "ab a", "é😀a", "  a", "b\n"]:
        ids = tokenizer.encode(text)
        assert tokenizer.decode(ids) == raw.decode(ids) == text
    assert tokenizer.token_bytes(raw.token_to_id("▁a")) == b" a"
    assert tokenizer.token_bytes(raw.token_to_id("<0xC3>")) == b"\xc3"
    assert tokenizer.token_bytes(raw.token_to_id("<s>")) == b"<s>"


def test_decoder_of_another_kind_is_refused(tmp_path: Path) -> None:
    raw = byte_level()
    raw.decoder = decoders.CTC()
    with pytest.raises(BrokenModel, match="decoder"):
        load(raw, tmp_path)


@pytest.mark.parametrize("content", ["", "{", "[]", '{"model": {"type": "Magic"}}'])
def test_damaged_tokenizer_is_refused_in_words(tmp_path: Path, content: str) -> None:
    (tmp_path / "tokenizer.json").write_text(content)
    with pytest.raises(BrokenModel, match=r"tokenizer\.json cannot be read"):
        load_tokenizer(tmp_path)


def test_folder_without_tokenizer_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BrokenModel, match=r"no tokenizer\.json"):
        load_tokenizer(tmp_path)
    (tmp_path / "tokenizer_config.json").write_text("{")
    with pytest.raises(BrokenModel, match="not valid JSON"):
        load_tokenizer(tmp_path)


def test_limits_inside_the_file_do_not_cut_texts(tmp_path: Path) -> None:
    raw = byte_level()
    raw.enable_truncation(4)
    raw.enable_padding(length=64)
    assert len(load(raw, tmp_path).encode("b" * 50)) == 50


@pytest.mark.parametrize("text", ["", "a", "<|im_start|>" * 500, "é" * 77, "<|im_start|>x" * 30])
def test_fewest_tokens_is_never_too_many(tmp_path: Path, text: str) -> None:
    for tokenizer in (byte_tokenizer(), load(byte_level(), tmp_path)):
        assert tokenizer.fewest_tokens(text) <= len(tokenizer.encode(text))


def test_fewest_tokens_tells_hopeless_texts_apart() -> None:
    assert byte_tokenizer().fewest_tokens("a" * 10_000_000) > 100_000


def test_tokenizer_that_drops_spaces_promises_nothing(tmp_path: Path) -> None:
    raw = marked(adds_space=False)
    raw.normalizer = normalizers.Sequence([normalizers.Replace(tokenizers.Regex(" +"), " "), raw.normalizer])
    tokenizer = load(raw, tmp_path)
    text = "a" + " " * 1_000_000 + "b"
    assert tokenizer.fewest_tokens(text) <= len(tokenizer.encode(text)) < 10


def test_unknown_ids_leave_no_trace_in_memory() -> None:
    tokenizer = byte_tokenizer()
    for token_id in range(10_000, 20_000):
        assert tokenizer.decode([token_id]) == ""
    assert len(tokenizer.spelling.shown(skip_special_tokens=True)) <= tokenizer.vocab_size


@pytest.mark.weights
def test_real_byte_level_decoding_equals_the_library_for_any_ids(smollm2: Path) -> None:
    tokenizer, raw = load_tokenizer(smollm2), tokenizers.Tokenizer.from_file(str(smollm2 / "tokenizer.json"))
    rng = np.random.default_rng(2)
    for _ in range(200):
        ids = rng.integers(0, tokenizer.vocab_size, 30).tolist()
        assert tokenizer.decode(ids) == raw.decode(ids)
