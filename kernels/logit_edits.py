"""What changes logits before a token is chosen: bias, penalties, and tokens that may not come yet. All in place."""

from dataclasses import dataclass, replace

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class Entries:
    """Single logits: entry i is logits[rows[i], token_ids[i]]. Tensors int64 [E]; no entry twice."""

    rows: Tensor
    token_ids: Tensor


@dataclass(frozen=True, slots=True)
class Penalties:
    """What N rows have already said, each token once; a row is filled up with repeats of any of its entries."""

    rows: Tensor  # int64 [N], rows of the logits
    token_ids: Tensor  # int64 [N, L], the row's tokens in prompt and output
    counts: Tensor  # float32 [N, L], how often each is in the output; 0 for tokens of the prompt alone
    repetition: Tensor  # float32 [N], 1 for none
    presence: Tensor  # float32 [N]
    frequency: Tensor  # float32 [N]


def say_ahead(penalties: Penalties, token_ids: Tensor, num_ahead: Tensor) -> Penalties:
    """The penalties of rows that go on to say the first `num_ahead` [N] of token_ids [N, P] each."""
    padding = penalties.token_ids[:, :1].expand(-1, token_ids.shape[1])
    said = torch.cat((penalties.token_ids, padding), dim=1)
    counts = torch.cat((penalties.counts, penalties.counts[:, :1].expand(-1, token_ids.shape[1])), dim=1)
    for place in range(token_ids.shape[1]):
        token, says = token_ids[:, place, None], (place < num_ahead)[:, None]
        same = (said == token) & says  # repeats of an entry stay equal
        new = says[:, 0] & ~same.any(dim=1)
        counts = counts + same.to(counts.dtype)
        column = penalties.token_ids.shape[1] + place
        said[:, column] = torch.where(new, token[:, 0], said[:, column])
        counts[:, column] = torch.where(new, torch.ones_like(counts[:, column]), counts[:, column])
    return replace(penalties, token_ids=said, counts=counts)


def add_bias(logits: Tensor, entries: Entries, bias: Tensor) -> None:
    """Adds bias [E] to single logits."""
    logits[entries.rows, entries.token_ids] += bias


def penalize(logits: Tensor, penalties: Penalties) -> None:
    """Repetition weakens every token of prompt and output (divided if positive, else multiplied); then presence and
    frequency are subtracted for tokens of the output."""
    where = (penalties.rows[:, None], penalties.token_ids)
    said = logits[where]
    repetition = penalties.repetition[:, None]
    said = (said / repetition).where(said > 0, said * repetition)
    said -= penalties.frequency[:, None] * penalties.counts
    said -= penalties.presence[:, None] * (penalties.counts > 0)
    logits[where] = said  # repeated entries carry equal values


def forbid(logits: Tensor, entries: Entries) -> None:
    """Makes single tokens impossible."""
    logits[entries.rows, entries.token_ids] = float("-inf")


def forbid_in(logits: Tensor, entries: Entries, wanted: Tensor) -> None:
    """The same, in the rows that are `wanted`, bool [N], alone."""
    where = (entries.rows, entries.token_ids)
    logits[where] = logits[where].masked_fill(wanted[entries.rows], float("-inf"))
