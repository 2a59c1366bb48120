"""Folders of weights: whole, in shards, damaged, and invented."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from corymb.kernels.torch_attention import TorchAttention
from corymb.models.architectures import read_config
from corymb.models.errors import BrokenModel, UnsupportedModel
from corymb.models.inventory import expected_tensors
from corymb.models.load import LoadOptions, load_model, weights_size_bytes
from corymb.models.precision import WeightType
from corymb.models.sequences import Sequences

CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "vocab_size": 50,
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
}
Tensors = dict[str, torch.Tensor]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A whole model in one file."""
    path = tmp_path / "model"
    path.mkdir()
    (path / "config.json").write_text(json.dumps(CONFIG))
    write_weights(path)
    return path


def write_weights(folder: Path) -> None:
    """Random tensors for the folder's config."""
    decoder = read_config(folder).decoder
    assert decoder is not None
    generator = torch.Generator().manual_seed(0)
    shapes = expected_tensors(decoder)
    tensors = {name: 0.3 * torch.randn(shape, generator=generator) for name, shape in shapes.items()}
    save_file(tensors, folder / "model.safetensors")


def logits(folder: Path, options: LoadOptions | None = None) -> torch.Tensor:
    """What the folder's model says to five tokens."""
    model = load_model(folder, read_config(folder), options or LoadOptions())
    sequences = Sequences.empty(model.attention_specs, num_rows=2, context_length=8)
    return model.logits(sequences.step(model, TorchAttention(), {1: [3, 1, 4, 1, 5]}))


def rewrite(folder: Path, change: Callable[[Tensors], None]) -> None:
    """Changes the tensors of a folder."""
    tensors = load_file(folder / "model.safetensors")
    change(tensors)
    save_file(tensors, folder / "model.safetensors")


def split(folder: Path) -> None:
    """Spreads a folder's tensors over two files with an index."""
    tensors = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    names = sorted(tensors)
    parts = {"model-00001-of-00002.safetensors": names[::2], "model-00002-of-00002.safetensors": names[1::2]}
    for file, of_file in parts.items():
        save_file({name: tensors[name] for name in of_file}, folder / file)
    weight_map = {name: file for file, of_file in parts.items() for name in of_file}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))


def test_shards_hold_the_same_model(folder: Path) -> None:
    whole = logits(folder)
    split(folder)
    assert torch.equal(logits(folder), whole)


def test_files_that_the_index_does_not_name_are_left_alone(folder: Path) -> None:
    split(folder)
    save_file({"stray": torch.ones(3)}, folder / "consolidated.safetensors")
    assert logits(folder).isfinite().all()


def test_progress_adds_up_to_the_size(folder: Path) -> None:
    advances: list[int] = []
    load_model(folder, read_config(folder), LoadOptions(), on_progress=advances.append)
    assert len(advances) > 10
    assert sum(advances) == weights_size_bytes(folder)
    assert weights_size_bytes(folder) < (folder / "model.safetensors").stat().st_size


@pytest.mark.parametrize("weights", ["float32", "float16", "int8"])
def test_loaded_model_does_not_need_its_files(folder: Path, weights: WeightType) -> None:
    (folder / "config.json").write_text(json.dumps({**CONFIG, "attention_bias": True, "mlp_bias": True}))
    write_weights(folder)
    model = load_model(folder, read_config(folder), LoadOptions(weights=weights))
    expected = logits(folder, LoadOptions(weights=weights))
    with (folder / "model.safetensors").open("r+b") as file:
        file.write(bytes(file.seek(0, 2)))
    sequences = Sequences.empty(model.attention_specs, num_rows=2, context_length=8)
    assert torch.equal(model.logits(sequences.step(model, TorchAttention(), {1: [3, 1, 4, 1, 5]})), expected)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_smaller_types_are_widened(folder: Path, dtype: torch.dtype) -> None:
    rewrite(folder, lambda tensors: tensors.update({name: tensor.to(dtype) for name, tensor in tensors.items()}))
    narrow = logits(folder)
    rewrite(folder, lambda tensors: tensors.update({name: tensor.float() for name, tensor in tensors.items()}))
    assert torch.equal(logits(folder), narrow)


@pytest.mark.parametrize("prefix", ["language_model.model.", "model.language_model."])
def test_text_model_inside_a_larger_one_is_found(folder: Path, prefix: str) -> None:
    expected = logits(folder)

    def nest(tensors: Tensors) -> None:
        for name in list(tensors):
            tensors[name.replace("model.", prefix, 1)] = tensors.pop(name)
        tensors["vision_tower.encoder.weight"] = torch.ones(3)
        tensors["model.multi_modal_projector.weight"] = torch.ones(3)

    rewrite(folder, nest)
    assert torch.equal(logits(folder), expected)


def test_tied_head_may_be_stored_or_not(folder: Path) -> None:
    (folder / "config.json").write_text(json.dumps({**CONFIG, "tie_word_embeddings": True}))
    stored = logits(folder)
    rewrite(folder, lambda tensors: tensors.pop("lm_head.weight"))
    assert torch.equal(logits(folder), stored)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda t: t.pop("model.norm.weight"), "lacks the tensors its config.json asks for: model.norm.weight."),
        (lambda t: t.update(extra=torch.ones(2)), "holds tensors its config.json has no place for: extra."),
        (
            lambda t: [t.pop(name) for name in list(t) if ".mlp." in name],
            "model.layers.0.mlp.down_proj.weight and 3 more",
        ),
        (
            lambda t: t.update({"model.norm.weight": torch.ones(17)}),
            "model.norm.weight in .* has shape \\[17\\], but config.json asks for \\[16\\]",
        ),
        (
            lambda t: t.update({"model.layers.0.self_attn.q_proj.bias": torch.ones(16)}),
            "has no place for: model.layers.0.self_attn.q_proj.bias",
        ),
    ],
)
def test_wrong_tensors_are_named(folder: Path, change: Callable[[Tensors], None], message: str) -> None:
    rewrite(folder, change)
    with pytest.raises(BrokenModel, match=message):
        logits(folder)


def test_quantized_tensors_are_refused(folder: Path) -> None:
    rewrite(folder, lambda tensors: tensors.update({"model.norm.weight": torch.ones(16, dtype=torch.int8)}))
    with pytest.raises(UnsupportedModel, match="is stored as I8, which is not supported"):
        logits(folder)


@pytest.mark.parametrize("num_bytes", [0, 4, 300, -1])
def test_cut_file_is_seen_before_it_is_read(folder: Path, num_bytes: int) -> None:
    file = folder / "model.safetensors"
    file.write_bytes(file.read_bytes()[:num_bytes])
    with pytest.raises(BrokenModel, match="download it again"):
        logits(folder)


def test_garbage_instead_of_a_header_is_seen(folder: Path) -> None:
    file = folder / "model.safetensors"
    length = int.from_bytes(file.read_bytes()[:8], "little")
    file.write_bytes(file.read_bytes()[:8] + b"x" * length + file.read_bytes()[8 + length :])
    with pytest.raises(BrokenModel, match="damaged header"):
        logits(folder)


def test_missing_shard_is_named(folder: Path) -> None:
    split(folder)
    (folder / "model-00002-of-00002.safetensors").unlink()
    with pytest.raises(BrokenModel, match=r"lacks model-00002-of-00002.*, which its index names"):
        logits(folder)


def test_index_may_not_point_outside(folder: Path) -> None:
    split(folder)
    shutil.move(folder / "model-00002-of-00002.safetensors", folder.parent)
    index = folder / "model.safetensors.index.json"
    index.write_text(index.read_text().replace("model-00002", "../model-00002"))
    with pytest.raises(BrokenModel, match="outside"):
        logits(folder)


def test_pickled_weights_are_refused(folder: Path) -> None:
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    with pytest.raises(UnsupportedModel, match=r"pickled weights \(pytorch_model.bin\).*convert them to safetensors"):
        logits(folder)


def test_folder_without_weights_says_so(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    with pytest.raises(BrokenModel, match="holds no weights"):
        logits(folder)


def test_dummy_weights_need_a_config_alone(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    options = LoadOptions(load_format="dummy")
    first = logits(folder, options)
    assert first.isfinite().all()
    assert first.std() > 0.01
    assert torch.equal(first, logits(folder, options))


@pytest.mark.parametrize(("weights", "tolerance"), [("float16", 3e-3), ("int8", 0.15)])
def test_smaller_weights_say_nearly_the_same(folder: Path, weights: WeightType, tolerance: float) -> None:
    exact = logits(folder)
    near = logits(folder, LoadOptions(weights=weights))
    assert 0 < (near - exact).abs().max() < tolerance * exact.abs().max()
