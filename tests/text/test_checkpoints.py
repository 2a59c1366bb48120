"""The two real checkpoints: tokenizers give the ids that the models were trained with."""

import json
from pathlib import Path

import numpy as np
import pytest
import tokenizers
from safetensors import safe_open

from corymb.serve.tokenizer import Tokenizer, load_tokenizer

pytestmark = pytest.mark.weights
NAMES = {"smollm2": "smollm2-135m-instruct", "gemma3": "gemma-3-270m"}


@pytest.fixture(scope="module", params=NAMES)
def folder(request) -> Path:
    return request.getfixturevalue(request.param)


@pytest.fixture(scope="module")
def tokenizer(folder: Path) -> Tokenizer:
    return load_tokenizer(folder)


@pytest.fixture
def cases(folder: Path, data: Path) -> list[dict]:
    name = next(name for name in NAMES.values() if folder.name.lower().startswith(name))
    return json.loads((data / "token_ids.json").read_text())["models"][name]


def test_token_ids_equal_those_of_llama_cpp(tokenizer: Tokenizer, cases: list[dict]) -> None:
    for case in cases:
        assert tokenizer.encode(case["text"], add_special_tokens=False) == case["ids"], case["text"]


def test_decoding_gives_the_text_back(tokenizer: Tokenizer, cases: list[dict]) -> None:
    for case in cases:
        assert tokenizer.decode(case["ids"], skip_special_tokens=False) == case["text"]


def test_every_token_is_spelled_as_the_tokenizers_library_spells_it(folder: Path, tokenizer: Tokenizer) -> None:
    theirs = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    for token_id in range(0, tokenizer.vocab_size, 1 + tokenizer.vocab_size // 60_000):
        assert tokenizer.token_text(token_id) == theirs.decode([token_id], skip_special_tokens=False), token_id


def test_ends_of_text_are_known(smollm2: Path, gemma3: Path) -> None:
    llama, gemma = load_tokenizer(smollm2), load_tokenizer(gemma3)
    assert (llama.bos_id, llama.eos_id, llama.vocab_size) == (1, 2, 49152)
    assert (gemma.bos_id, gemma.eos_id, gemma.vocab_size) == (2, 1, 262144)
    assert llama.encode("Hi") == [26843]
    assert gemma.encode("Hi") == [2, 10979]


@pytest.mark.parametrize(
    ("fixture", "num_tensors", "shape"), [("smollm2", 272, (49152, 576)), ("gemma3", 236, (262144, 640))]
)
def test_weights_are_whole_float32(request, fixture: str, num_tensors: int, shape: tuple[int, int]) -> None:
    with safe_open(request.getfixturevalue(fixture) / "model.safetensors", "numpy") as file:
        names = list(file.keys())
        assert len(names) == num_tensors
        assert file.get_tensor("model.embed_tokens.weight").shape == shape
        for name in names[::9]:
            tensor = file.get_tensor(name)
            assert tensor.dtype == np.float32
            assert np.isfinite(tensor).all()
