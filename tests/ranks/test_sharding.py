"""Which part of a checkpoint each rank reads."""

import re
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from corymb.models.architectures import read_config
from corymb.models.config import DecoderConfig
from corymb.models.errors import UnsupportedModel
from corymb.models.headers import read_headers
from corymb.models.inventory import expected_tensors
from corymb.models.load import read_size_bytes
from corymb.models.share import Share, check_split, cut_of, local_config
from corymb.models.weights import CheckpointWeights, DummyWeights, Weights

CPU = torch.device("cpu")


def decoder_of(folder: Path) -> DecoderConfig:
    decoder = read_config(folder).decoder
    assert decoder is not None
    return decoder


@pytest.fixture(params=["llama", "qwen3", "gemma3", "qwen3-moe"])
def folder(request, tiny) -> Path:
    return Path(tiny(request.param))


def taken(weights: Weights, names: list[str]) -> dict[str, Tensor]:
    return {name: weights.take(name).clone() for name in names}


def read(folder: Path, share: Share) -> tuple[dict[str, Tensor], int]:
    """What a rank reads, and how many bytes of the files that is."""
    decoder, advances = decoder_of(folder), []
    names = list(expected_tensors(decoder))
    with CheckpointWeights(
        read_headers(folder), CPU, advances.append, cuts=lambda name: cut_of(name, decoder, share)
    ) as weights:
        return taken(weights, names), sum(advances)


def put_together(parts: list[Tensor], whole: Tensor, name: str) -> Tensor:
    """The ranks' parts as one tensor of the whole's shape."""
    if parts[0].shape == whole.shape:
        if re.search(r"[od](own)?_proj\.bias", name):
            return torch.stack(parts).sum(dim=0)
        assert all(torch.equal(part, parts[0]) for part in parts)
        return parts[0]
    axis = next(axis for axis in range(whole.dim()) if parts[0].shape[axis] != whole.shape[axis])
    if parts[0].shape[axis] * len(parts) >= 2 * whole.shape[axis]:  # neighbours keep the same
        parts = parts[:: parts[0].shape[axis] * len(parts) // whole.shape[axis]]
    return torch.cat(parts, axis).narrow(axis, 0, whole.shape[axis])


@pytest.mark.parametrize("size", [2, 4])
def test_ranks_together_read_every_weight_once(folder: Path, size: int) -> None:
    whole = load_file(folder / "model.safetensors")
    ranks = [read(folder, Share(rank, size)) for rank in range(size)]
    shapes = expected_tensors(local_config(decoder_of(folder), Share(0, size)))
    for name, tensor in whole.items():
        parts = [tensors[name] for tensors, _ in ranks]
        assert {tuple(part.shape) for part in parts} == {shapes[name]}, name
        assert torch.equal(put_together(parts, tensor, name), tensor), name
    read_bytes = [count for _, count in ranks]
    assert read_bytes == [read_size_bytes(folder, decoder_of(folder), Share(rank, size)) for rank in range(size)]
    total = sum(tensor.nbytes for tensor in whole.values())
    assert max(read_bytes) < total / size * 1.25


def test_invented_weights_are_parts_of_the_same_whole(folder: Path) -> None:
    decoder = decoder_of(folder)
    shapes = expected_tensors(decoder)
    whole = taken(DummyWeights(shapes, torch.float32, CPU), list(shapes))
    parts = [
        taken(
            DummyWeights(
                shapes, torch.float32, CPU, cuts=lambda name, rank=rank: cut_of(name, decoder, Share(rank, 2))
            ),
            list(shapes),
        )
        for rank in range(2)
    ]
    for name, tensor in whole.items():
        assert torch.equal(put_together([part[name] for part in parts], tensor, name), tensor), name


def test_a_vocabulary_that_does_not_divide_is_filled_up(tiny) -> None:
    decoder = replace(decoder_of(Path(tiny("llama"))), vocab_size=263)
    cuts = [cut_of("lm_head.weight", decoder, Share(rank, 4)) for rank in range(4)]
    assert [(*((piece.start, piece.stop) for piece in cut.pieces), cut.length) for cut in cuts if cut] == [
        ((0, 66), 66),
        ((66, 132), 66),
        ((132, 198), 66),
        ((198, 263), 66),
    ]


@pytest.mark.parametrize(
    ("changes", "size", "sentence"),
    [
        ({"num_heads": 9, "num_kv_heads": 3}, 2, "9 attention heads, which 2 ranks cannot share evenly"),
        ({"num_heads": 12, "num_kv_heads": 4}, 6, "4 KV heads, which 6 ranks cannot share"),
        ({"intermediate_size": 81}, 2, "an MLP of 81, which 2 ranks"),
        ({"vocab_size": 5}, 4, "a vocabulary of 5, which 4 ranks"),
        ({"family": "other"}, 2, "Other cannot be split over several ranks; leave --tp-size out."),
    ],
)
def test_what_cannot_be_split_is_refused_in_a_sentence(tiny, changes, size: int, sentence: str) -> None:
    decoder = replace(decoder_of(Path(tiny("llama"))), **changes)
    check_split(decoder, "Other", 1)
    with pytest.raises(UnsupportedModel, match=sentence):
        check_split(decoder, "Other", size)
