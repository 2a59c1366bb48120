"""What somebody may name as a model, and what is said when it cannot be served."""

import json
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from corymb.models.source import Hub, SourceError, resolve
from corymb.serve.tokenizer import load_tokenizer


def get(model: str | None, tmp_path: Path, **options):
    return resolve(model, cache_dir=tmp_path / "cache", offline=True, hub=Hub(cache_dir=tmp_path / "hub"), **options)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "my-model"
    folder.mkdir()
    for name, text in {"config.json": '{"vocab_size": 300}', "tokenizer.json": "{}", "model.safetensors": ""}.items():
        (folder / name).write_text(text)
    return folder


def test_local_folder_is_used_where_it_lies(folder: Path, tmp_path: Path) -> None:
    source = get(str(folder), tmp_path)
    assert (source.folder, source.served_name) == (folder, str(folder))
    assert not (tmp_path / "cache").exists()


@pytest.mark.parametrize("name", ["tape", "hash", "uniform"])
def test_toys_have_a_config_and_the_byte_tokenizer(tmp_path: Path, name: str) -> None:
    source = get(f"corymb/{name}", tmp_path)
    assert (source.name, source.served_name) == (f"corymb/{name}", name)
    config = json.loads((source.folder / "config.json").read_text())
    assert config["architectures"] == [f"Corymb{name.capitalize()}"]
    assert (config["vocab_size"], config["eos_token_id"], config["max_position_embeddings"]) == (
        264,
        [257, 259],
        131_072,
    )
    assert load_tokenizer(source.folder).encode("é<eos>") == [195, 169, 257]
    assert get(f"corymb/{name}", tmp_path).folder == source.folder


def test_gguf_file_is_converted_once(tiny, tmp_path: Path) -> None:
    path = tiny().write(tmp_path / "Some-Model.Q4_0.gguf")
    source = get(str(path), tmp_path)
    assert source.served_name == "Some-Model.Q4_0"
    state = (source.folder / "model.safetensors").stat()
    assert get(str(path), tmp_path).folder == source.folder
    assert (source.folder / "model.safetensors").stat() == state


def test_changed_gguf_file_is_converted_anew(tiny, tmp_path: Path) -> None:
    path = tiny().write(tmp_path / "model.gguf")
    first = get(str(path), tmp_path).folder
    model = tiny()
    model.metadata["llama.context_length"] = 256
    model.write(path)
    second = get(str(path), tmp_path).folder
    assert first != second
    assert json.loads((second / "config.json").read_text())["max_position_embeddings"] == 256


def test_folder_with_one_gguf_file_is_that_file(tiny, tmp_path: Path) -> None:
    folder = tmp_path / "packed"
    folder.mkdir()
    tiny().write(folder / "a.gguf")
    assert get(str(folder), tmp_path).served_name == "a"
    tiny().write(folder / "b.gguf")
    with pytest.raises(SourceError, match=r"holds 2 GGUF files.*a\.gguf"):
        get(str(folder), tmp_path)


@pytest.mark.parametrize(
    ("model", "words"),
    [
        ("./nowhere", "no file or folder './nowhere'"),
        ("/nowhere/at/all", "no file or folder '/nowhere/at/all'"),
        ("missing.gguf", "no file or folder 'missing.gguf'"),
        ("two words", "no file or folder 'two words'"),
        ("corymb/guitar", "no 'corymb/guitar'; the models made for tests are corymb/tape"),
        ("", "no file or folder"),
    ],
)
def test_name_that_means_nothing_is_repeated(tmp_path: Path, model: str, words: str) -> None:
    with pytest.raises(SourceError, match=words):
        get(model, tmp_path)


def test_folder_without_config_is_no_model(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match="not a model folder"):
        get(str(tmp_path), tmp_path)


def test_file_of_another_kind_is_no_model(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(SourceError, match=r"neither a folder nor a \.gguf file"):
        get(str(folder / "config.json"), tmp_path)


def test_pickled_weights_alone_are_refused(folder: Path, tmp_path: Path) -> None:
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    with pytest.raises(SourceError, match="pickled"):
        get(str(folder), tmp_path)


def test_folder_without_weights_serves_dummy_ones(folder: Path, tmp_path: Path) -> None:
    (folder / "model.safetensors").unlink()
    with pytest.raises(SourceError, match=r"no \.safetensors weights"):
        get(str(folder), tmp_path)
    assert get(str(folder), tmp_path, weights=False).folder == folder


def test_config_alone_gets_the_byte_tokenizer(folder: Path, tmp_path: Path) -> None:
    for name in ("model.safetensors", "tokenizer.json"):
        (folder / name).unlink()
    prepared = get(str(folder), tmp_path, weights=False).folder
    assert json.loads((prepared / "config.json").read_text()) == {"vocab_size": 300}
    assert load_tokenizer(prepared).encode("a") == [97]
    assert list(folder.iterdir()) == [folder / "config.json"]


def test_small_config_alone_has_no_room_for_bytes(folder: Path, tmp_path: Path) -> None:
    (folder / "tokenizer.json").unlink()
    (folder / "config.json").write_text('{"vocab_size": 100}')
    with pytest.raises(SourceError, match=r"no tokenizer \(tokenizer.json\)"):
        get(str(folder), tmp_path, weights=False)


@pytest.fixture
def slow(folder: Path) -> Path:
    """A model with only the files of a slow tokenizer."""
    (folder / "tokenizer.json").unlink()
    (folder / "config.json").write_text('{"model_type": "gpt2", "vocab_size": 5}')
    (folder / "vocab.json").write_text('{"a": 0, "b": 1, "ab": 2, "\\u0120": 3, "<|endoftext|>": 4}')
    (folder / "merges.txt").write_text("#version: 0.2\na b\n")
    return folder


def test_slow_tokenizer_is_converted_once_in_another_process(slow: Path, tmp_path: Path) -> None:
    prepared = get(str(slow), tmp_path).folder
    assert load_tokenizer(prepared).encode("ab a") == [2, 3, 0]
    assert (prepared / "model.safetensors").samefile(slow / "model.safetensors")
    assert not (slow / "tokenizer.json").exists()
    made = (prepared / "tokenizer.json").stat()
    assert get(str(slow), tmp_path).folder == prepared
    assert (prepared / "tokenizer.json").stat() == made


def test_slow_tokenizer_that_cannot_be_converted_says_why(slow: Path, tmp_path: Path) -> None:
    (slow / "vocab.json").write_text("{")
    with pytest.raises(SourceError, match=r"cannot be converted to tokenizer\.json"):
        get(str(slow), tmp_path)


def test_sentencepiece_model_says_which_packages_read_it(slow: Path, tmp_path: Path) -> None:
    if find_spec("sentencepiece"):
        pytest.skip("sentencepiece is installed")
    (slow / "tokenizer.model").write_bytes(b"")
    with pytest.raises(SourceError, match="pip install sentencepiece protobuf"):
        get(str(slow), tmp_path)


def test_finding_models_needs_neither_torch_nor_transformers() -> None:
    code = "import sys, corymb.models.source, corymb.serve.detokenizer, corymb.serve.chat; print(*sys.modules)"
    names = subprocess.run(
        [sys.executable, "-P", "-c", code], capture_output=True, text=True, check=True
    ).stdout.split()
    assert "corymb.models.source" in names
    assert not {"torch", "transformers"} & set(names)


@pytest.mark.parametrize("model", [None, "corymb/hash", "folder"])
def test_revision_of_what_has_none_is_refused(folder: Path, tmp_path: Path, model: str | None) -> None:
    with pytest.raises(SourceError, match="--revision main is for models of a hub"):
        get(str(folder) if model == "folder" else model, tmp_path, revision="main")
