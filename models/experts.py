"""Routed experts, and how they are made out of their weights."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from corymb.kernels.routing import Gating, Routing
from corymb.kernels.torch_experts import gate, route, weigh
from corymb.models.linear import Linear, MakeLinear


@dataclass(frozen=True, slots=True)
class ExpertWeights:
    """One expert's weights: gate above up [2 × n, H], down [H, n], and their biases."""

    gate_up: Tensor
    down: Tensor
    gate_up_bias: Tensor | None
    down_bias: Tensor | None


@dataclass(frozen=True, slots=True)
class Rule:
    """What tokens and experts do, apart from weights of products."""

    routing: Routing
    gating: Gating
    correction: Tensor | None  # float32 [num_experts]


class Experts(Protocol):
    """The routed experts of one layer."""

    def __call__(self, x: Tensor, logits: Tensor) -> Tensor:
        """Returns [T, H]: what the experts that the router's logits [T, num_experts] choose make of x [T, H]."""
        ...


class MakeExperts(Protocol):
    """Makes experts out of their weights, one expert after another."""

    def __call__(self, rule: Rule, weights: Iterator[ExpertWeights], /) -> Experts:
        """Keeps the weights, in a layout of its own."""
        ...


@dataclass(frozen=True, slots=True)
class SeparateExperts:
    """Makes a product for each expert. A token's result is the same bits whatever tokens are beside it, if a product's
    result is."""

    make_linear: MakeLinear

    def __call__(self, rule: Rule, weights: Iterator[ExpertWeights], /) -> Experts:
        """See MakeExperts."""
        return _SeparateExperts(rule, [self._make(one) for one in weights])

    def _make(self, one: ExpertWeights) -> tuple[Linear, Linear]:
        gate_up = self.make_linear(one.gate_up.contiguous(), one.gate_up_bias)
        return gate_up, self.make_linear(one.down.contiguous(), one.down_bias)


class _SeparateExperts:
    def __init__(self, rule: Rule, products: list[tuple[Linear, Linear]]) -> None:
        self._rule = rule
        self._products = products

    def __call__(self, x: Tensor, logits: Tensor) -> Tensor:
        routing = self._rule.routing
        routed = route(logits, routing, self._rule.correction)
        chosen = routed.ids.reshape(-1)
        # Pair p is choice p % top_k of token p ÷ top_k; those of one expert lie together in `order`.
        order = chosen.argsort(stable=True)
        counts = chosen.bincount(minlength=routing.num_experts).tolist()
        parts = torch.empty((len(chosen), x.shape[1]), dtype=x.dtype, device=x.device)
        for (gate_up, down), pairs in zip(self._products, torch.split(order, counts), strict=True):
            if len(pairs):
                parts[pairs] = down(gate(gate_up(x[pairs // routing.top_k]), self._rule.gating))
        return weigh(parts.view(len(x), routing.top_k, -1), routed.weights)
