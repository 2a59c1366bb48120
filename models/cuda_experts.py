"""Routed experts on a GPU: all weights of a layer in two tensors."""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from corymb.kernels.triton_experts import Stacked, mix
from corymb.kernels.triton_jit import Launch
from corymb.models.experts import Experts, ExpertWeights, Rule


@dataclass(frozen=True, slots=True)
class CudaExperts:
    """Makes experts. `deterministic`: a token's result never depends on the tokens beside it."""

    dtype: torch.dtype
    launch: Launch
    deterministic: bool = False

    def __call__(self, rule: Rule, weights: Iterator[ExpertWeights], /) -> Experts:
        """See MakeExperts."""
        gate_up, down, gate_up_bias, down_bias = (_Stack(rule.routing.num_experts, self.dtype) for _ in range(4))
        for expert, one in enumerate(weights):
            gate_up.put(expert, one.gate_up)
            down.put(expert, one.down)
            gate_up_bias.put(expert, one.gate_up_bias)
            down_bias.put(expert, one.down_bias)
        assert gate_up.tensor is not None, "a layer without experts"
        assert down.tensor is not None, "a layer without experts"
        stacked = Stacked(gate_up.tensor, down.tensor, gate_up_bias.tensor, down_bias.tensor)
        return _CudaExperts(self, rule, stacked)


class _CudaExperts:
    def __init__(self, kind: CudaExperts, rule: Rule, stacked: Stacked) -> None:
        self._kind = kind
        self._rule = rule
        self._stacked = stacked

    def __call__(self, x: Tensor, logits: Tensor) -> Tensor:
        """See Experts."""
        rule, kind = self._rule, self._kind
        return mix(
            x,
            logits,
            rule.routing,
            rule.gating,
            rule.correction,
            self._stacked,
            launch=kind.launch,
            invariant=kind.deterministic,
        )


class _Stack:
    """One tensor for all experts, allocated when the first comes: no more than one expert is held twice."""

    def __init__(self, count: int, dtype: torch.dtype) -> None:
        self._count = count
        self._dtype = dtype
        self.tensor: Tensor | None = None

    def put(self, expert: int, one: Tensor | None) -> None:
        """Copies one expert's tensor, if it has one, to its place."""
        if one is None:
            return
        if self.tensor is None:
            self.tensor = torch.empty((self._count, *one.shape), dtype=self._dtype, device=one.device)
        self.tensor[expert].copy_(one)
