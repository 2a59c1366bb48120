"""Greedy drafts are accepted as plain torch accepts them, in memory that held anything."""

import pytest
import torch

from corymb.kernels.packing import Windows, pack
from corymb.kernels.sampling import Choice
from corymb.kernels.settling import Drafted, Settled, settle
from corymb.kernels.standing import room
from corymb.kernels.triton_settling import TritonSettling


@pytest.mark.parametrize(
    ("windows", "more", "num_drafts", "padding", "confident"),
    [([3, 0, 2, 1], [0, 2, 1, 0], 3, 0, True), ([0, 0], [0, 0], 0, 3, False), ([4, 2], [0, 2], 4, 2, False)],
)
def test_drafts_are_accepted_as_in_plain_torch(place, windows, more, num_drafts, padding, confident) -> None:
    count, numbers = len(windows), place.numbers
    drafts = place.put(numbers.integers(0, 3, (count, num_drafts)))
    lengths = place.put(numbers.integers(1, 20, count).astype("int32"))
    rows = place.put(numbers.permutation(count) + 1)
    may, verified = (torch.tensor(each, dtype=torch.int32, device=place.device) for each in (windows, more))
    verified = may + verified
    table = place.put(numbers.permutation(40 * (count + 1)).astype("int32").reshape(count + 1, 40))
    num_tokens = int(verified.sum()) + count + padding
    packed = pack(Windows(rows, lengths, 1 + verified, lengths.long(), drafts), table, None, num_tokens)
    choice = Choice(place.put(numbers.integers(0, 3, num_tokens)), place.put(numbers.random(num_tokens) < 0.8))
    confidence = place.normal(count, 2 * num_drafts)[:, ::2].contiguous() if confident else None
    drafted, standing = Drafted(drafts, may, verified, confidence), room(count, 1, place.device)
    standing.rows.copy_(rows)
    standing.lengths.copy_(lengths)
    found = []
    for back_end in (TritonSettling(place.launch), settle):
        memory = [torch.full((size,), -77, device=place.device) for size in (count + 2, count + 2, num_tokens)]
        settled = Settled(memory[0], memory[1].int(), memory[2])
        said = back_end(choice, packed, standing, drafted, settled)
        assert (settled.kept_slots != -77).all()
        found.append((said, settled.last_sampled, settled.lengths, settled.kept_slots))
    for mine, other in zip(*found, strict=True):
        assert torch.equal(mine, other)
