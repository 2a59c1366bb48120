"""gpt-oss checkpoints whose experts are packed as MXFP4."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from test_families import CASES, make_reference, random_prompt
from transformers.integrations.mxfp4 import convert_moe_packed_tensors

from corymb.kernels.torch_attention import TorchAttention
from corymb.models.architectures import read_config
from corymb.models.errors import BrokenModel
from corymb.models.load import LoadOptions, load_model
from corymb.models.sequences import Sequences

Tensors = dict[str, torch.Tensor]
SIZES = {"hidden_size": 64, "intermediate_size": 32, "num_hidden_layers": 2}


@pytest.fixture
def packed(tmp_path: Path) -> Path:
    """A checkpoint with random blocks and scales."""
    family, changes = CASES["gpt-oss"]
    make_reference(family, {**changes, **SIZES}).save_pretrained(tmp_path)
    generator = torch.Generator().manual_seed(3)
    tensors = load_file(tmp_path / "model.safetensors")
    for name in [name for name in tensors if name.endswith(("gate_up_proj", "down_proj"))]:
        experts, inputs, outputs = tensors.pop(name).shape
        shape = (experts, outputs, inputs // 32)
        tensors[f"{name}_blocks"] = torch.randint(256, (*shape, 16), generator=generator, dtype=torch.uint8)
        tensors[f"{name}_scales"] = torch.randint(120, 127, shape, generator=generator, dtype=torch.uint8)
    save_file(tensors, tmp_path / "model.safetensors")
    config = json.loads((tmp_path / "config.json").read_text())
    config["quantization_config"] = {"quant_method": "mxfp4", "modules_to_not_convert": ["model.layers.*.self_attn"]}
    (tmp_path / "config.json").write_text(json.dumps(config))
    return tmp_path


def logits(folder: Path, prompt: list[int]) -> torch.Tensor:
    model = load_model(folder, read_config(folder), LoadOptions())
    sequences = Sequences.empty(model.attention_specs, num_rows=2, context_length=64)
    return model.logits(sequences.step(model, TorchAttention(), {1: prompt}))


def test_packed_experts_are_what_they_are_in_transformers(packed: Path) -> None:
    tensors = load_file(packed / "model.safetensors")
    family, changes = CASES["gpt-oss"]
    reference = make_reference(family, {**changes, **SIZES})
    for name in [name.removesuffix("_blocks") for name in tensors if name.endswith("_blocks")]:
        blocks, scales = tensors.pop(f"{name}_blocks"), tensors.pop(f"{name}_scales")
        tensors[name] = convert_moe_packed_tensors(blocks, scales, dtype=torch.float32)
    reference.load_state_dict(tensors)
    prompt = random_prompt(4, 40)
    with torch.no_grad():
        expected = reference(torch.tensor([prompt])).logits[0]
    scale = float(expected.abs().max())
    torch.testing.assert_close(logits(packed, prompt), expected, atol=2e-5 * scale, rtol=0)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda t: t.pop("model.layers.0.mlp.experts.down_proj_scales"), "not .*down_proj_scales; download it again"),
        (
            lambda t: t.update(
                {"model.layers.1.mlp.experts.down_proj_scales": torch.ones(6, 64, 2, dtype=torch.uint8)}
            ),
            "down_proj in .* is not packed as MXFP4",
        ),
        (
            lambda t: t.update({"model.layers.1.mlp.experts.down_proj_scales": torch.ones(6, 64, 1)}),
            r"its scales F32 \[6, 64, 1\]",
        ),
    ],
)
def test_what_is_packed_otherwise_is_named(packed: Path, change: Callable[[Tensors], None], message: str) -> None:
    tensors = load_file(packed / "model.safetensors")
    change(tensors)
    save_file(tensors, packed / "model.safetensors")
    with pytest.raises(BrokenModel, match=message):
        logits(packed, [5])
