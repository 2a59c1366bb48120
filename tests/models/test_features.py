"""What models put out on the way, for drafts: what transformers calls hidden states."""

from pathlib import Path

import pytest
import torch
from test_families import ATOL, CASES, make_reference, random_prompt, scale

from corymb.kernels.torch_attention import TorchAttention
from corymb.models.architectures import read_config
from corymb.models.features import EMBEDDED, Capture
from corymb.models.load import LoadOptions, load_model
from corymb.models.sequences import Sequences

FAMILIES = (
    "smollm, tied",
    "mistral, sliding",
    "qwen2",
    "qwen3",
    "smollm3",
    "mixtral",
    "qwen3 moe",
    "qwen3-next",
    "qwen3.5",
    "falcon-h1, multiplied",
    "lfm2",
    "lfm2 moe",
    "gpt-oss",
    "deepseek v3",
    "deepseek v3.2",
    "glm moe dsa",
    "gemma 2",
    "gemma 3",
)
LENGTH = 40


@pytest.mark.parametrize("name", FAMILIES)
def test_features_are_the_hidden_states_of_transformers(name: str, tmp_path: Path) -> None:
    reference = make_reference(*CASES[name])
    reference.save_pretrained(tmp_path)
    config = read_config(tmp_path)
    model = load_model(tmp_path, config, LoadOptions())
    prompt = random_prompt(7, LENGTH)
    with torch.no_grad():
        states = reference(torch.tensor([prompt]), output_hidden_states=True).hidden_states
    layers = (EMBEDDED, *range(config.num_layers - 1))
    sequences = Sequences.empty(model.attention_specs, model.state_specs, num_rows=2, context_length=64)
    attention = TorchAttention()
    for start, end in ((0, 30), (30, LENGTH - 1), (LENGTH - 1, LENGTH)):
        into = torch.full((end - start, len(layers) * states[0].shape[2]), torch.nan)
        sequences.step(model, attention, {1: prompt[start:end]}, capture=Capture(layers, into))
        for found, layer in zip(into.chunk(len(layers), dim=1), layers, strict=True):
            expected = states[layer + 1][0, start:end]
            torch.testing.assert_close(found, expected, atol=ATOL * scale(expected), rtol=0)
