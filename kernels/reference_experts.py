"""A mixture of experts as its definition says, one token and one expert at a time, in Python's own numbers."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from corymb.kernels.routing import Gating, Routing


@dataclass(frozen=True, slots=True)
class Expert:
    """One expert's weights: gate above up [2 × n, H], down [H, n], and their biases."""

    gate_up: Tensor
    down: Tensor
    gate_up_bias: Tensor | None = None
    down_bias: Tensor | None = None


def choose(logits: Sequence[float], routing: Routing, correction: Sequence[float] | None = None) -> dict[int, float]:
    """The weight of each chosen expert of one token, the best first."""
    scores = _scores(logits, routing)
    rank = scores if correction is None else [a + b for a, b in zip(scores, correction, strict=True)]
    allowed = _allowed(rank, routing)
    chosen = sorted(allowed, key=lambda expert: (-rank[expert], expert))[: routing.top_k]
    total = sum(scores[expert] for expert in chosen) if routing.normalized else 1.0
    return {expert: scores[expert] / total * routing.scale for expert in chosen}


def apply(x: Tensor, expert: Expert, gating: Gating) -> Tensor:
    """What one expert makes of one token: float64 [H] of [H]."""
    inner = expert.gate_up.double() @ x.double()
    if expert.gate_up_bias is not None:
        inner = inner + expert.gate_up_bias.double()
    left, up = inner.chunk(2)
    limit = math.inf if gating.limit is None else gating.limit
    left, up = left.clamp(max=limit), up.clamp(-limit, limit)
    out = expert.down.double() @ (left * torch.sigmoid(gating.slope * left) * (up + gating.lift))
    return out if expert.down_bias is None else out + expert.down_bias.double()


def mix(x: Tensor, experts: Sequence[Expert], chosen: Sequence[dict[int, float]], gating: Gating) -> Tensor:
    """Returns float64 [T, H] of [T, H]: each token's experts, weighed."""
    tokens = [
        sum((weight * apply(token, experts[expert], gating) for expert, weight in of_token.items()), torch.zeros(()))
        for token, of_token in zip(x, chosen, strict=True)
    ]
    return torch.stack(tokens)


def _scores(logits: Sequence[float], routing: Routing) -> list[float]:
    if routing.scores == "sigmoid":
        return [1 / (1 + math.exp(-logit)) for logit in logits]
    powers = [math.exp(logit - max(logits)) for logit in logits]
    return [power / sum(powers) for power in powers]


def _allowed(rank: Sequence[float], routing: Routing) -> list[int]:
    """The experts of the best groups."""
    size = routing.group_size
    groups = [range(first, first + size) for first in range(0, routing.num_experts, size)]
    merits = [sum(sorted((rank[expert] for expert in group), reverse=True)[:2]) for group in groups]
    best = sorted(range(len(groups)), key=lambda group: (-merits[group], group))[: routing.top_groups]
    return [expert for group in sorted(best) for expert in groups[group]]
