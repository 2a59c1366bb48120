"""Where rows are is what plain torch says, in memory that held anything."""

from dataclasses import fields

import numpy as np
import torch

from corymb.kernels.standing import NOBODY, NUM_FACTS, room, stand
from corymb.kernels.triton_standing import TritonStanding


def test_rows_stand_where_plain_torch_says(place) -> None:
    numbers, count, num_drafts = place.numbers, 4, 5
    facts = numbers.integers(-(2**31), 2**31, (NUM_FACTS, count)).astype(np.int32)
    facts[0], facts[1] = numbers.permutation(8)[:count], numbers.integers(0, 40, count)
    facts[0, 3] = NOBODY
    facts[3] = np.array([0.0, 0.7, 1.5, 0.0], np.float32).view(np.int32)
    last_sampled, lengths = numbers.integers(0, 90, 8), numbers.integers(40, 80, 8).astype(np.int32)
    inputs = [place.put(each) for each in (facts, last_sampled, lengths)]
    out = room(count + 2, num_drafts, place.device)
    for each in fields(out):
        getattr(out, each.name).fill_(-77)
    TritonStanding(place.launch)(*inputs, out.first(count))
    expected = stand(*inputs, num_drafts)
    for each in fields(out):
        mine, other = getattr(out, each.name), getattr(expected, each.name)
        assert torch.equal(mine[:count], other), each.name
        assert mine.dtype == other.dtype
        assert (mine[count:] == -77).all()
