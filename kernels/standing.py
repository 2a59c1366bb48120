"""Where rows are that only the device knows, and the noise that they draw with: in plain torch, without waiting."""

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from corymb.kernels.noise import keys_of

# Lines of facts, int32 [NUM_FACTS, R].
ROW = 0  # NOBODY: a row of padding, at position 0 of row 0
FIRST_OUTPUT = 1  # the length at which a row has no output yet: one less than its prompt has tokens
MOST = 2  # drafts
TEMPERATURE = 3  # the bits of a float32; 0 for the likeliest tokens
SEED = 4  # two lines: the lower half of the bits, and the upper
NUM_FACTS = 6

NOBODY = -1


@dataclass(frozen=True, slots=True)
class Standing:
    """R rows."""

    rows: Tensor  # int64 [R]
    anchors: Tensor  # int64 [R], what each sampled last
    lengths: Tensor  # int32 [R], tokens whose keys are written: the anchor's position
    num_outputs: Tensor  # int64 [R], the anchor included
    most: Tensor  # int32 [R], drafts
    temperature: Tensor  # float32 [R]
    keys: Tensor  # int32 [R, num_drafts, 2]: noise keys of the next output tokens

    def first(self, num_rows: int) -> "Standing":
        """The first rows, in the same memory."""
        return Standing(
            rows=self.rows[:num_rows],
            anchors=self.anchors[:num_rows],
            lengths=self.lengths[:num_rows],
            num_outputs=self.num_outputs[:num_rows],
            most=self.most[:num_rows],
            temperature=self.temperature[:num_rows],
            keys=self.keys[:num_rows],
        )


class Stand(Protocol):
    """A back end."""

    def __call__(self, facts: Tensor, last_sampled: Tensor, lengths: Tensor, out: Standing) -> None:
        """Fills `out` from facts [NUM_FACTS, R] of the rows and what the device keeps by row."""
        ...


def room(num_rows: int, num_drafts: int, device: torch.device) -> Standing:
    """Memory for so many rows."""

    def zeros(dtype: torch.dtype, *shape: int) -> Tensor:
        return torch.zeros((num_rows, *shape), dtype=dtype, device=device)

    return Standing(
        rows=zeros(torch.int64),
        anchors=zeros(torch.int64),
        lengths=zeros(torch.int32),
        num_outputs=zeros(torch.int64),
        most=zeros(torch.int32),
        temperature=zeros(torch.float32),
        keys=zeros(torch.int32, num_drafts, 2),
    )


def stand(facts: Tensor, last_sampled: Tensor, lengths: Tensor, num_drafts: int) -> Standing:
    """The same in plain torch."""
    somebody = facts[ROW] != NOBODY
    rows = facts[ROW].clamp(min=0).long()
    lengths = torch.where(somebody, lengths[rows], 0)
    seeds = (facts[SEED].long() & 0xFFFFFFFF) | (facts[SEED + 1].long() << 32)
    num_outputs = lengths.long() - facts[FIRST_OUTPUT]
    return Standing(
        rows=rows,
        anchors=last_sampled[rows],
        lengths=lengths,
        num_outputs=num_outputs,
        most=facts[MOST],
        temperature=facts[TEMPERATURE].view(torch.float32),
        keys=keys_of_places(seeds, num_outputs, num_drafts),
    )


def keys_of_places(seeds: Tensor, num_outputs: Tensor, count: int, *, other: bool = False) -> Tensor:
    """Keys int32 [R, count, 2] of the next `count` output tokens of rows with `seeds` [R]."""
    indices = num_outputs[:, None] + torch.arange(count, device=seeds.device)
    keys = keys_of(seeds.repeat_interleave(count), indices.reshape(-1), other=other)
    return keys.view(len(seeds), count, 2)
