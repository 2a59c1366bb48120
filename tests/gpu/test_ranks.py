"""Several GPUs that share a model: their sums through each other's memory, and the runner's steps. A process a rank."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from corymb.models.architectures import read_config
from corymb.models.inventory import expected_tensors
from corymb.models.weights import DummyWeights

HERE = Path(__file__).parent


SIZE = 2 if torch.cuda.is_available() else 3
needs_two = pytest.mark.skipif(torch.cuda.is_available() and torch.cuda.device_count() < SIZE, reason="needs two GPUs")
TINY = {
    "architectures": ["LlamaForCausalLM"],
    "vocab_size": 91,  # does not divide
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 1,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "tie_word_embeddings": True,
    "eos_token_id": 2,
}


@needs_two
def test_sums_are_right_and_the_same_on_every_rank(tmp_path: Path) -> None:
    said = run("summing_rank.py", SIZE, tmp_path)
    print(said[0])
    assert [text.splitlines()[-1] for text in said] == ["right"] * SIZE


@needs_two
def test_two_ranks_give_the_tokens_of_one(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(TINY))
    shapes = expected_tensors(read_config(tmp_path).decoder)
    invented = DummyWeights(shapes, torch.float32, torch.device("cpu"))
    save_file({name: invented.take(name) for name in shapes}, tmp_path / "model.safetensors")
    [one] = run("running_rank.py", 1, tmp_path)
    two = run("running_rank.py", 2, tmp_path)
    assert [json.loads(text) for text in two] == [json.loads(one)] * 2
    assert sum(len(tokens) for tokens, _ in json.loads(one)) == 1 + 2 + 2 + 2 + 9


def run(program: str, size: int, folder: Path) -> list[str]:
    """What each rank prints."""
    ranks = [
        subprocess.Popen(
            [sys.executable, HERE / program, str(rank), str(size), folder], stdout=subprocess.PIPE, text=True
        )
        for rank in range(size)
    ]
    try:
        return [rank.communicate(timeout=200)[0] for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
