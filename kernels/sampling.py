"""From logits to tokens, in the order: bias, penalties, minimum length, temperature, top-k, top-p, min-p, draw.

Each filter sees what the filters before it left, renormalised. Ties at a cut go to the lower token id, so what a row
samples depends on its logits, its key and its own settings, and never on its neighbours in the batch.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from corymb.kernels.noise import log_exponential

_NOTHING = float("-inf")
_PREFIXES = (256, 4096)  # how many of the best logits are looked at before a whole vocabulary is sorted


@dataclass(frozen=True, slots=True)
class Choice:
    """The token of every row, and whether the row's logits were usable."""

    token_ids: Tensor  # int64 [N], inside the vocabulary also where not usable
    usable: Tensor  # bool [N], False where logits hold NaN or +inf, or nothing but -inf


@dataclass(frozen=True, slots=True)
class Draws:
    """How N rows draw. Tensors [N] on the device of the logits."""

    temperature: Tensor  # float32, above 0
    top_k: Tensor  # int64; 0 keeps all
    top_p: Tensor  # float32, in (0, 1]
    min_p: Tensor  # float32, in [0, 1]
    keys: Tensor  # int32 [N, 2], from `noise.row_keys`

    def pick(self, index: Tensor) -> "Draws":
        """The draws of some rows."""
        return Draws(self.temperature[index], self.top_k[index], self.top_p[index], self.min_p[index], self.keys[index])


@dataclass(frozen=True, slots=True)
class Ordered:
    """The best K tokens of every row, best first, equals by token id."""

    values: Tensor  # [N, K]
    token_ids: Tensor  # int64 [N, K]


def greedy(logits: Tensor) -> Choice:
    """Takes the best token of every row, the lowest id among equals."""
    best, token_ids = logits.max(dim=1)
    return Choice(token_ids, best.isfinite())  # a maximum is NaN as soon as one of its terms is


def draw(logits: Tensor, draws: Draws) -> Tensor:
    """Samples a token of every row [N, V] without top-k and top-p."""
    scores = _scaled(logits, draws)
    scores = scores.masked_fill_(scores < draws.min_p.log()[:, None], _NOTHING)
    every_id = torch.arange(logits.shape[1], dtype=torch.int32, device=logits.device)
    return scores.sub_(log_exponential(draws.keys, every_id)).argmax(dim=1)


def draw_filtered(logits: Tensor, draws: Draws) -> Tensor:
    """Samples a token of every row [N, V] with top-k, top-p and min-p."""
    scaled = _scaled(logits, draws)
    token_ids = torch.zeros(len(logits), dtype=torch.int64, device=logits.device)
    pending = torch.arange(len(logits), device=logits.device)
    for size in (*_prefixes(logits), logits.shape[1]):
        some = draws.pick(pending)
        ordered = best(scaled[pending], size)
        kept = _num_kept(ordered.values, scaled[pending], some)
        token_ids[pending] = _draw_ordered(ordered, kept, some)
        pending = pending[~_complete(ordered.values, kept, logits.shape[1])]
        if not len(pending):
            break
    return token_ids


def best(values: Tensor, size: int) -> Ordered:
    """The `size` best of every row of `values` [N, V]. Equals at the cut are any of those, unless all are taken."""
    if size >= values.shape[1]:
        ranked = values.sort(dim=1, descending=True, stable=True)
        return Ordered(ranked.values, ranked.indices)
    token_ids = values.topk(size, dim=1, sorted=False).indices.sort(dim=1).values
    ranked = values.gather(1, token_ids).sort(dim=1, descending=True, stable=True)
    return Ordered(ranked.values, token_ids.gather(1, ranked.indices))


def exact_best(values: Tensor, size: int) -> Ordered:
    """The `size` best of every row of `values` [N, V], lower ids first among equals at the cut too."""
    size = min(size, values.shape[1])
    ordered = best(values, size + 1)
    if size < values.shape[1] and bool((ordered.values[:, size - 1] == ordered.values[:, size]).any()):
        ordered = best(values, values.shape[1])
    return Ordered(ordered.values[:, :size], ordered.token_ids[:, :size])


def _scaled(logits: Tensor, draws: Draws) -> Tensor:
    """Logits over temperature, at most 0: no temperature overflows them."""
    return (logits - logits.amax(dim=1, keepdim=True)).div_(draws.temperature[:, None])


def _prefixes(logits: Tensor) -> tuple[int, ...]:
    """A sort is cheap on a GPU, and asking whether a prefix was enough is not."""
    if logits.is_cuda:
        return ()
    return tuple(size for size in _PREFIXES if 2 * size <= logits.shape[1])


def _num_kept(values: Tensor, scaled: Tensor, draws: Draws) -> Tensor:
    """How many of the ordered `values` [N, K] top-k and top-p keep, at least one."""
    rank = torch.arange(values.shape[1], device=values.device)
    top_k = torch.where(draws.top_k > 0, draws.top_k, scaled.shape[1])[:, None]
    weights = values.exp().masked_fill_(rank >= top_k, 0.0)
    everything = torch.where(draws.top_k > 0, weights.sum(dim=1), scaled.exp().sum(dim=1))
    before = weights.cumsum(dim=1) - weights
    inside = (before < (draws.top_p * everything)[:, None]) & (rank < top_k)
    inside |= (draws.top_p >= 1.0)[:, None] & (rank < top_k)
    return inside.sum(dim=1).clamp_(min=1)


def _complete(values: Tensor, kept: Tensor, vocab_size: int) -> Tensor:
    """Whether no token outside the ordered `values` can belong to those kept."""
    last = values.gather(1, kept[:, None] - 1)[:, 0]
    return (last > values[:, -1]) | (values.shape[1] == vocab_size)


def _draw_ordered(ordered: Ordered, kept: Tensor, draws: Draws) -> Tensor:
    rank = torch.arange(ordered.values.shape[1], device=kept.device)
    dropped = (rank >= kept[:, None]) | (ordered.values < draws.min_p.log()[:, None])
    noise = log_exponential(draws.keys, ordered.token_ids.to(torch.int32))
    winner = (ordered.values - noise).masked_fill_(dropped, _NOTHING).argmax(dim=1, keepdim=True)
    return ordered.token_ids.gather(1, winner)[:, 0]
