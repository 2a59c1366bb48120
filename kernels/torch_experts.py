"""Routing and gating in plain torch: for every device, and what fast versions are tested against.

A token's result depends on that token alone, bit for bit.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from corymb.kernels.routing import Gating, Routing

LEAST_SUM = 1e-20  # of weights that others are divided by


@dataclass(frozen=True, slots=True)
class Routed:
    """The chosen experts of each token, the best first."""

    ids: Tensor  # int64 [T, top_k]
    weights: Tensor  # float32 [T, top_k]


def route(logits: Tensor, routing: Routing, correction: Tensor | None = None) -> Routed:
    """Chooses experts from the router's logits [T, num_experts]; `correction` is float32 [num_experts]."""
    logits = logits.float()
    scores = logits.softmax(-1) if routing.scores == "softmax" else logits.sigmoid()
    rank = scores if correction is None else scores + correction
    if routing.num_groups > 1:
        rank = _in_best_groups(rank, routing)
    ids = _best(rank, routing.top_k)
    weights = scores.gather(1, ids)
    if routing.normalized:
        weights = weights / (_sum_columns(weights) + LEAST_SUM)
    return Routed(ids, weights * routing.scale)


def gate(gate_up: Tensor, gating: Gating) -> Tensor:
    """Returns [N, n] of [N, 2 × n], gate first."""
    left, up = gate_up.chunk(2, dim=-1)
    if gating.limit is not None:
        left, up = left.clamp(max=gating.limit), up.clamp(-gating.limit, gating.limit)
    return left * torch.sigmoid(left * gating.slope) * (up + gating.lift)


def weigh(parts: Tensor, weights: Tensor) -> Tensor:
    """Sums each token's parts [T, top_k, H] by its weights [T, top_k], always in the same order."""
    total = parts[:, 0].float() * weights[:, :1]
    for choice in range(1, parts.shape[1]):
        total += parts[:, choice].float() * weights[:, choice, None]
    return total.to(parts.dtype)


def _best(rank: Tensor, count: int) -> Tensor:
    """Columns of the highest entries; unlike topk, a stable sort says which of equals come first."""
    return rank.sort(dim=-1, descending=True, stable=True).indices[:, :count]


def _in_best_groups(rank: Tensor, routing: Routing) -> Tensor:
    groups = rank.view(len(rank), routing.num_groups, routing.group_size)
    merit = groups.sort(dim=-1, descending=True).values[..., :2].sum(-1)
    kept = torch.zeros_like(merit, dtype=torch.bool).scatter_(1, _best(merit, routing.top_groups), True)
    return groups.masked_fill(~kept[..., None], -torch.inf).view_as(rank)


def _sum_columns(weights: Tensor) -> Tensor:
    total = weights[:, :1].clone()
    for column in range(1, weights.shape[1]):
        total += weights[:, column, None]
    return total
