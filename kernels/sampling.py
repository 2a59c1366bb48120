"""From logits to tokens, in the order: bias, penalties, minimum length, mask, temperature, top-k, top-p, min-p, draw.

Each filter sees what the filters before it left, renormalised. Ties at a cut go to the lower token id, so what a row
samples depends on its logits, its key and its own settings, and never on its neighbours in the batch.
"""

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from corymb.kernels.logit_masks import keep_allowed
from corymb.kernels.noise import exponential

_PREFIXES = (64, 512, 4096)  # how many of the best logits are looked at before a whole vocabulary is sorted
_BLOCK = 1 << 17  # logits; float32 and bits of so many fit the second-level caches of two cores
_LARGE = 1e30


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
    any_min_p: bool  # whether any min_p is above 0

    def pick(self, index: Tensor | slice) -> "Draws":
        """The draws of some rows."""
        return Draws(
            temperature=self.temperature[index],
            top_k=self.top_k[index],
            top_p=self.top_p[index],
            min_p=self.min_p[index],
            keys=self.keys[index],
            any_min_p=self.any_min_p,
        )


@dataclass(frozen=True, slots=True)
class Ordered:
    """The best K tokens of every row, best first, equals by token id."""

    values: Tensor  # [N, K]
    token_ids: Tensor  # int64 [N, K]


class Sampling(Protocol):
    """A back end."""

    def mask(self, logits: Tensor, index: Tensor, bits: Tensor) -> None:
        """Makes tokens impossible in the rows at `index` [n] of logits: those whose bit of `bits` int32 [n, W] is not
        set, where bit t % 32 of word t // 32 is token t's."""
        ...

    def greedy(self, logits: Tensor) -> Choice:
        """Takes the best token of every row, the lowest id among equals."""
        ...

    def draw(self, logits: Tensor, index: Tensor, draws: Draws, token_ids: Tensor, *, filtered: bool) -> None:
        """Sets token_ids [N] at `index` [n] to samples of those rows of logits; top-k and top-p only if filtered."""
        ...


class TorchSampling:
    """Works on every device."""

    def mask(self, logits: Tensor, index: Tensor, bits: Tensor) -> None:
        """See Sampling."""
        keep_allowed(logits, index, bits)

    def greedy(self, logits: Tensor) -> Choice:
        """See Sampling."""
        return greedy(logits)

    def draw(self, logits: Tensor, index: Tensor, draws: Draws, token_ids: Tensor, *, filtered: bool) -> None:
        """See Sampling."""
        token_ids[index] = (draw_filtered if filtered else draw)(logits[index], draws)


def greedy(logits: Tensor) -> Choice:
    """Takes the best token of every row, the lowest id among equals."""
    best, token_ids = logits.max(dim=1)
    return Choice(token_ids, best.isfinite())  # a maximum is NaN as soon as one of its terms is


def draw(logits: Tensor, draws: Draws) -> Tensor:
    """Samples a token of every row [N, V] without top-k and top-p."""
    every_id = torch.arange(logits.shape[1], dtype=torch.int32, device=logits.device)
    token_ids = torch.empty(len(logits), dtype=torch.int64, device=logits.device)
    for block in _blocks(logits):
        some = draws.pick(block)
        weights = _scaled(logits[block], some).softmax(dim=1)
        if some.any_min_p:
            weights *= weights >= some.min_p[:, None] * weights.amax(dim=1, keepdim=True)
        token_ids[block] = weights.div_(exponential(some.keys, every_id)).argmax(dim=1)
    return token_ids


def draw_filtered(logits: Tensor, draws: Draws) -> Tensor:
    """Samples a token of every row [N, V] with top-k, top-p and min-p."""
    token_ids = torch.empty(len(logits), dtype=torch.int64, device=logits.device)
    totals = _totals(logits, draws)
    pending = torch.arange(len(logits), device=logits.device)
    for size in (*_prefixes(logits), logits.shape[1]):
        some = draws.pick(pending)
        ordered = best(logits if len(pending) == len(logits) else logits[pending], size)
        weights = ((ordered.values - ordered.values[:, :1]) / some.temperature[:, None]).exp_()
        kept = num_kept(weights, totals[pending], some)
        token_ids[pending] = _draw_ordered(ordered, weights, kept, some)
        if size < logits.shape[1]:
            pending = pending[~_complete(ordered.values, kept, some)]
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
    """Logits over temperature, as a copy; finite for every temperature that counts as random."""
    return logits.clamp(-_LARGE, _LARGE).div_(draws.temperature[:, None])


def _blocks(logits: Tensor) -> list[slice]:
    """Rows that are worked on at a time: on a CPU their intermediate results should stay in its caches."""
    size = len(logits) if logits.is_cuda else max(1, _BLOCK // logits.shape[1])
    return [slice(start, start + size) for start in range(0, len(logits), size)]


def _prefixes(logits: Tensor) -> tuple[int, ...]:
    """A sort is cheap on a GPU, and asking whether a prefix was enough is not."""
    if logits.is_cuda:
        return ()
    return tuple(size for size in _PREFIXES if 2 * size <= logits.shape[1])


def _totals(logits: Tensor, draws: Draws) -> Tensor:
    """Σ exp((logit - best) / temperature) over the vocabulary, where top-p needs it: in rows without top-k."""
    totals = torch.zeros(len(logits), device=logits.device)
    for block in _blocks(logits):
        some = draws.pick(block)
        if logits.is_cuda or not bool((some.top_k > 0).all()):
            below = logits[block] - logits[block].amax(dim=1, keepdim=True)
            totals[block] = below.div_(some.temperature[:, None]).exp_().sum(dim=1)
    return totals


def num_kept(weights: Tensor, totals: Tensor, draws: Draws) -> Tensor:
    """How many of the best tokens, with ordered `weights` [N, K], top-k and top-p keep; at least one."""
    rank = torch.arange(weights.shape[1], device=weights.device)
    allowed = (rank < draws.top_k[:, None]) | (draws.top_k == 0)[:, None]
    weights = weights * allowed
    totals = torch.where(draws.top_k > 0, weights.sum(dim=1), totals)
    before = weights.cumsum(dim=1) - weights
    inside = (before < (draws.top_p * totals)[:, None]) | (draws.top_p >= 1.0)[:, None]
    return (inside & allowed).sum(dim=1).clamp_(min=1)


def _complete(values: Tensor, kept: Tensor, draws: Draws) -> Tensor:
    """Whether no token outside the ordered `values` [N, K] can belong to those kept."""
    last = values.gather(1, kept[:, None] - 1)[:, 0]
    return (last > values[:, -1]) & (draws.top_k < values.shape[1])  # else top-p has not seen all that top-k keeps


def _draw_ordered(ordered: Ordered, weights: Tensor, kept: Tensor, draws: Draws) -> Tensor:
    rank = torch.arange(weights.shape[1], device=kept.device)
    weights = weights * ((rank < kept[:, None]) & (weights >= draws.min_p[:, None]))
    winner = (weights / exponential(draws.keys, ordered.token_ids.to(torch.int32))).argmax(dim=1, keepdim=True)
    return ordered.token_ids.gather(1, winner)[:, 0]
