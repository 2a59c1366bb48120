"""Embeddings are transformers' last hidden states, whatever caching, chunking, batching and retraction do."""

from pathlib import Path

import msgspec
import numpy as np
import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from by_loop import serve_rounds
from transformers import LlamaConfig, LlamaForCausalLM

from corymb.models.toy_folders import write_toy
from corymb.scheduler.messages import Generate, Output, Sampling

CHOOSER = np.random.default_rng(3)
BEGINNING = CHOOSER.integers(3, 300, 40)
PROMPTS = [np.concatenate([BEGINNING[:shared], CHOOSER.integers(3, 300, own)]) for shared, own in [
    (0, 1), (0, 2), (0, 9), (40, 1), (40, 30), (33, 17), (7, 100)]]  # fmt: skip
SIZES = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
BASE = {"dtype": "float32", "max_total_tokens": 2048}
VARIANTS = {
    "plain": {},
    "one at a time": {"max_running_requests": 1},
    "chunks of 8": {"chunked_prefill_size": 8},
    "mixed chunks": {"chunked_prefill_size": 8, "enable_mixed_chunk": True},
    "pages of 16": {"page_size": 16},
    "no prefix cache": {"enable_prefix_cache": False},
    "retraction every 2 steps": {"test_retract_interval": 2, "chunked_prefill_size": 8},
    "no overlap": {"overlap_depth": 0},
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny random Llama."""
    torch.manual_seed(1)
    config = LlamaConfig(vocab_size=300, num_key_value_heads=2, max_position_embeddings=256, eos_token_id=2, **SIZES)
    path = tmp_path_factory.mktemp("llama")
    LlamaForCausalLM(config).save_pretrained(path)
    return path


@pytest.fixture(scope="module")
def expected(folder: Path) -> list[np.ndarray]:
    """What transformers computes."""
    model = LlamaForCausalLM.from_pretrained(folder, torch_dtype=torch.float32).model
    with torch.inference_mode():
        states = [model(torch.from_numpy(prompt)[None]).last_hidden_state[0, -1] for prompt in PROMPTS]
    return [F.normalize(state, dim=0).numpy() for state in states]


def asks(*, embed: bool) -> list[Generate]:
    """The prompts, to embed or to go on."""
    sampling = Sampling(max_new_tokens=1 if embed else 6, temperature=0.0, ignore_eos=True)
    name = "embed" if embed else "text"
    return [
        Generate(f"{name}-{number}", prompt.astype(np.int32).tobytes(), sampling, embed=embed)
        for number, prompt in enumerate(PROMPTS)
    ]


def only(outputs: list[Output]) -> np.ndarray:
    """The embedding of a request's single output."""
    (output,) = outputs
    assert output.embedding is not None
    return np.frombuffer(output.embedding, "<f4")


@pytest.mark.parametrize("name", VARIANTS)
def test_embeddings_equal_transformers(folder: Path, expected: list[np.ndarray], name: str) -> None:
    mixed = [each for pair in zip(asks(embed=True), asks(embed=False), strict=True) for each in pair]
    for port in serve_rounds(folder, [mixed, mixed], BASE | VARIANTS[name]):
        for number, vector in enumerate(expected):
            found = only(port.outputs[f"embed-{number}"])
            assert found.dtype == np.float32
            np.testing.assert_allclose(found, vector, atol=2e-6)
            assert np.linalg.norm(found) == pytest.approx(1, abs=1e-6)
            assert all(output.embedding is None for output in port.outputs[f"text-{number}"])


def test_a_model_without_hidden_states_refuses(tmp_path: Path) -> None:
    write_toy("corymb/hash", tmp_path)
    ask = msgspec.structs.replace(asks(embed=True)[0], prompt=np.array([97], np.int32).tobytes())
    (port,) = serve_rounds(tmp_path, [[ask]], {"max_total_tokens": 512})
    (output,) = port.outputs["embed-0"]
    assert output.finish is not None
    assert (output.finish.status, "hidden states" in output.finish.message) == (400, True)
