"""What greedy rows accept, and how it is reported: in plain torch, without waiting for the device."""

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from corymb.kernels.acceptance import match
from corymb.kernels.packing import Packed
from corymb.kernels.sampling import Choice
from corymb.kernels.standing import Standing


@dataclass(frozen=True, slots=True)
class Drafted:
    """What R rows drafted, P places each."""

    token_ids: Tensor  # int64 [R, P]
    windows: Tensor  # int32 [R], drafts that may be accepted
    num_verified: Tensor  # int32 [R]
    confidence: Tensor | None  # float32 [R, P]


@dataclass(frozen=True, slots=True)
class Settled:
    """Where a step leaves what it decides."""

    last_sampled: Tensor  # int64 [num_rows]
    lengths: Tensor  # int32 [num_rows]
    kept_slots: Tensor  # int64 [T], slots of the tokens that stay; 0 for the others


@dataclass(frozen=True, slots=True)
class Said:
    """What R rows say in W = P + 1 places: behind the anchor, and behind each draft."""

    token_ids: Tensor  # int64 [R, W]
    usable: Tensor  # bool [R, W]
    counts: Tensor  # int64 [R], of the tokens that count


class Settle(Protocol):
    """A back end."""

    def __call__(
        self, choice: Choice, packed: Packed, standing: Standing, drafted: Drafted, settled: Settled
    ) -> Tensor:
        """Accepts the drafts that are what the target chose, up to their windows, and leaves each row as far as that
        takes it. Returns `tabulate` of it."""
        ...


def say(choice: Choice, packed: Packed, drafted: Drafted) -> Said:
    """What greedy rows say. Places beyond what was verified repeat the last."""
    num_rows, num_drafts = drafted.token_ids.shape
    places = torch.arange(num_drafts + 1, dtype=torch.int32, device=packed.offsets.device)
    at = (packed.offsets[:num_rows, None] + torch.minimum(places, drafted.num_verified[:, None])).long()
    own = choice.token_ids[at]
    return Said(own, choice.usable[at], match(own, drafted.token_ids, drafted.windows) + 1)


def commit(said: Said, packed: Packed, standing: Standing, settled: Settled) -> None:
    """Leaves rows as far as they came."""
    counts = said.counts
    settled.last_sampled[standing.rows] = said.token_ids.gather(1, counts[:, None] - 1)[:, 0]
    settled.lengths[standing.rows] = (standing.lengths + counts).int()
    kept = torch.cat((counts, counts.new_zeros(1)))[packed.owners.long()]  # of padding, nothing
    settled.kept_slots.copy_(torch.where(packed.places < kept, packed.slots, 0))


def tabulate(said: Said, drafted: Drafted) -> Tensor:
    """Int32 [R, W + 4 (+ P)]: tokens, how many of them count, drafts verified, drafts that might be accepted, whether
    all that count is usable, and the bits of the confidence, if there is any."""
    places = torch.arange(said.token_ids.shape[1], device=said.counts.device)
    usable = (said.usable | (places >= said.counts[:, None])).all(dim=1)
    columns = [said.token_ids, said.counts[:, None], drafted.num_verified[:, None], drafted.windows[:, None]]
    columns.append(usable[:, None])
    if drafted.confidence is not None:
        columns.append(drafted.confidence.float().contiguous().view(torch.int32))
    return torch.cat([column.int() for column in columns], dim=1)


def settle(choice: Choice, packed: Packed, standing: Standing, drafted: Drafted, settled: Settled) -> Tensor:
    """See Settle."""
    said = say(choice, packed, drafted)
    commit(said, packed, standing, settled)
    return tabulate(said, drafted)
