"""Models with experts, sinks, latents, indexes and states, split over ranks that are threads: the logits of one."""

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from test_families import CASES, make_reference, random_prompt

from corymb.kernels.operations import Norm, Operations
from corymb.kernels.sampling import Choice
from corymb.kernels.torch_attention import TorchAttention
from corymb.models.architectures import read_config
from corymb.models.errors import UnsupportedModel
from corymb.models.load import LoadOptions, load_model, read_size_bytes
from corymb.models.sequences import Sequences
from corymb.models.share import Share

EVEN = {"vocab_size": 98, "hidden_size": 64, "num_attention_heads": 4, "num_key_value_heads": 2}
SPLIT = {
    "mixtral": {},
    "qwen3 moe, partly dense": {},
    "gpt-oss": {"intermediate_size": 128},
    "deepseek v3": {"num_key_value_heads": 4},
    "deepseek v3, queries at once": {"num_key_value_heads": 4},
    "deepseek v3, biases": {"num_key_value_heads": 4},
    "glm moe dsa, shared index": {"num_key_value_heads": 4},
    "qwen3-next": {"linear_num_key_heads": 4, "linear_num_value_heads": 8},
    "qwen3.5": {"linear_num_key_heads": 4, "linear_num_value_heads": 8},
    "falcon-h1, multiplied": {},
    "falcon-h1, gated before its norm": {"mamba_n_groups": 4},
    "lfm2 with biases": {"intermediate_size": 96},
}


class Meeting:
    """Where ranks that are threads exchange tensors."""

    def __init__(self, size: int) -> None:
        self.size = size
        self._given: list[torch.Tensor] = [torch.empty(0)] * size
        self._barrier = threading.Barrier(size)  # without a limit: a busy machine may hold one of them up for long

    def leave(self) -> None:
        """One of them has failed, and nobody shall wait for it."""
        self._barrier.abort()

    def exchange(self, rank: int, x: torch.Tensor) -> list[torch.Tensor]:
        self._given[rank] = x.clone()
        self._barrier.wait()
        given = list(self._given)
        self._barrier.wait()
        return given


class ThreadGroup:
    """Implements `Group` for one of those ranks."""

    def __init__(self, meeting: Meeting, rank: int) -> None:
        self._meeting = meeting
        self.rank, self.size = rank, meeting.size

    def all_reduce(self, x: torch.Tensor) -> torch.Tensor:
        return torch.stack(self._meeting.exchange(self.rank, x)).sum(0)

    first_sum = all_reduce

    def add_rms_norm(self, x: torch.Tensor, residual: torch.Tensor, norm: Norm, operations: Operations) -> torch.Tensor:
        return operations.add_rms_norm(self.all_reduce(x), residual, norm.weight, norm.eps)

    def all_gather(self, x: torch.Tensor) -> torch.Tensor:
        return torch.stack(self._meeting.exchange(self.rank, x))

    def choose(self, scores: torch.Tensor, own: Choice, first: int) -> Choice:
        raise AssertionError("nothing is sampled here")

    def copy_from_first(self, x: torch.Tensor) -> None:
        x.copy_(self._meeting.exchange(self.rank, x)[0])


LOADING = threading.Lock()  # torch.jit.script, which makes products, is not for several threads at once


def logits(folder: Path, options: LoadOptions) -> torch.Tensor:
    """Of two rows, over a chunk each and a step of both."""
    with LOADING:
        model = load_model(folder, read_config(folder), options)
    sequences = Sequences.empty(model.attention_specs, model.state_specs, num_rows=3, context_length=64)
    attention = TorchAttention()
    prompts = {1: random_prompt(1, 40), 2: random_prompt(2, 9)}
    steps = [{1: prompts[1][:30], 2: prompts[2]}, {1: prompts[1][30:], 2: [7]}, {1: [5], 2: [6]}]
    return torch.cat([model.logits(sequences.step(model, attention, step)) for step in steps])


def split(folder: Path, size: int) -> list[torch.Tensor]:
    meeting = Meeting(size)

    def rank(number: int) -> torch.Tensor:
        try:
            return logits(folder, LoadOptions(group=ThreadGroup(meeting, number)))
        except threading.BrokenBarrierError:
            raise
        except BaseException:
            meeting.leave()
            raise

    with ThreadPoolExecutor(size) as pool:
        ranks = [pool.submit(rank, number) for number in range(size)]
    failures = [failure for one in ranks if (failure := one.exception()) is not None]
    for failure in sorted(failures, key=lambda one: isinstance(one, threading.BrokenBarrierError)):
        raise failure  # the one that the others did not wait for
    return [one.result() for one in ranks]


def write(name: str, folder: Path, **changes: int) -> Path:
    family, own = CASES[name]
    make_reference(family, own | EVEN | SPLIT[name] | changes).save_pretrained(folder)
    return folder


def assert_split_is_whole(folder: Path, size: int) -> None:
    whole = logits(folder, LoadOptions())
    for one in split(folder, size):
        torch.testing.assert_close(one, whole, atol=3e-5 * float(whole.abs().max()), rtol=0)


@pytest.mark.parametrize("size", [2, 4])
@pytest.mark.parametrize("name", SPLIT)
def test_ranks_together_compute_what_one_does(name: str, size: int, tmp_path: Path) -> None:
    assert_split_is_whole(write(name, tmp_path), size)


@pytest.mark.parametrize(
    ("name", "changes", "sentence"),
    [
        ("qwen3-next", {"linear_num_key_heads": 2}, "2 recurrent key heads, which 4 ranks cannot share evenly"),
        ("falcon-h1, gated before its norm", {"mamba_n_groups": 2}, "2 groups of Mamba heads, which 4 ranks"),
        ("falcon-h1, multiplied", {"mamba_n_heads": 2, "mamba_d_head": 32}, "2 Mamba heads, which 4 ranks"),
    ],
)
def test_states_that_ranks_cannot_share_are_refused(
    name: str, changes: dict[str, int], sentence: str, tmp_path: Path
) -> None:
    with pytest.raises(UnsupportedModel, match=sentence):
        logits(write(name, tmp_path, **changes), LoadOptions(group=ThreadGroup(Meeting(4), 0)))


def pack(folder: Path) -> None:
    """Gives a gpt-oss checkpoint random packed experts."""
    generator = torch.Generator().manual_seed(3)
    tensors = load_file(folder / "model.safetensors")
    for name in [name for name in tensors if name.endswith(("gate_up_proj", "down_proj"))]:
        experts, inputs, outputs = tensors.pop(name).shape
        shape = (experts, outputs, inputs // 32)
        tensors[f"{name}_blocks"] = torch.randint(256, (*shape, 16), generator=generator, dtype=torch.uint8)
        tensors[f"{name}_scales"] = torch.randint(120, 125, shape, generator=generator, dtype=torch.uint8)
    save_file(tensors, folder / "model.safetensors")


def test_packed_experts_are_split_where_their_groups_allow(tmp_path: Path) -> None:
    pack(write("gpt-oss", tmp_path, intermediate_size=64))
    assert_split_is_whole(tmp_path, 2)
    with pytest.raises(UnsupportedModel, match="experts of 64 packed in groups of 32, which 4 ranks cannot share"):
        logits(tmp_path, LoadOptions(group=ThreadGroup(Meeting(4), 0)))


def test_experts_that_lie_stacked_are_split(tmp_path: Path) -> None:
    folder = write("qwen3 moe, partly dense", tmp_path)
    tensors = load_file(folder / "model.safetensors")
    apart = logits(folder, LoadOptions())
    stack(tensors, "model.layers.1.mlp.experts")
    save_file(tensors, folder / "model.safetensors")
    assert torch.equal(logits(folder, LoadOptions()), apart)
    assert_split_is_whole(folder, 4)
    decoder = read_config(folder).decoder
    read = [read_size_bytes(folder, decoder, Share(rank, 4)) for rank in range(4)]
    assert max(read) < sum(tensor.nbytes for tensor in tensors.values()) / 4 * 1.25


def stack(tensors: dict[str, torch.Tensor], name: str) -> None:
    """Puts a layer's experts together."""
    take: Callable[[str], torch.Tensor] = lambda part: torch.stack(  # noqa: E731
        [tensors.pop(f"{name}.{expert}.{part}.weight") for expert in range(8)]
    )
    tensors[f"{name}.gate_up_proj"] = torch.cat((take("gate_proj"), take("up_proj")), dim=1)
    tensors[f"{name}.down_proj"] = take("down_proj")
