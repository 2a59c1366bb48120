"""What the token before a draft says of it: numbers that are mixed with the draft's hidden state, then scored against
the whole vocabulary."""

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from corymb.models.linear import Linear


@dataclass(frozen=True, slots=True)
class Mixed:
    """One step of R blocks."""

    inner: Tensor  # [R, rank], what scores the vocabulary
    state: Tensor  # [R, rank], for the next step


class Mix(Protocol):
    """A kind of head."""

    def __call__(self, entries: Tensor, hidden: Tensor, state: Tensor) -> Mixed:
        """Of the tokens' entries [R, rank], the slots' hidden states [R, H] and what the step before left."""
        ...


def vanilla(entries: Tensor, hidden: Tensor, state: Tensor) -> Mixed:  # noqa: ARG001
    """The token alone counts."""
    return Mixed(entries, state)


@dataclass(frozen=True, slots=True)
class Gated:
    """The hidden state says which of the token's numbers count."""

    product: Linear  # [rank, H + rank]

    def __call__(self, entries: Tensor, hidden: Tensor, state: Tensor) -> Mixed:
        """See Mix."""
        gate = torch.sigmoid(self.product(torch.cat((hidden, entries), dim=1)))
        return Mixed(gate * entries, state)


@dataclass(frozen=True, slots=True)
class Recurrent:
    """All tokens of the block count."""

    product: Linear  # [3 × rank, 2 × rank + H]: gate, candidate, output

    def __call__(self, entries: Tensor, hidden: Tensor, state: Tensor) -> Mixed:
        """See Mix."""
        gate, candidate, output = self.product(torch.cat((state, entries, hidden), dim=1)).chunk(3, dim=1)
        kept = torch.sigmoid(gate)
        state = kept * state + (1 - kept) * torch.tanh(candidate)
        return Mixed(torch.tanh(output), state)


@dataclass(frozen=True, slots=True)
class MarkovHead:
    """A head with its tables."""

    entries: Tensor  # [V, rank], of the token before
    scores: Linear  # [tokens that can be drafted, rank]
    mix: Mix

    def start(self, num_rows: int, dtype: torch.dtype) -> Tensor:
        """The state before the first draft."""
        return torch.zeros(num_rows, self.entries.shape[1], dtype=dtype, device=self.entries.device)
