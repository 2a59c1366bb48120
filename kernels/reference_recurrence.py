"""Recurrent layers as their definitions say, token by token in float64: what every back end is tested against."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from corymb.kernels.attention import RaggedLayout
from corymb.kernels.recurrence import LENGTH_EPS, Convolution, DeltaRule, GatedNorm, StateSpace


def convolve(x: Tensor, convolution: Convolution, windows: Tensor, layout: RaggedLayout) -> Tensor:
    """See Recurrence; float64, and `windows` is changed too."""
    out = torch.empty(x.shape, dtype=torch.float64, device=x.device)
    for row in _rows(layout):
        window = windows[row.slot].double()
        for token in row.tokens:
            seen = torch.cat((window, x[token : token + 1].double()))
            total = (seen * convolution.weight.double()).sum(0)
            if convolution.bias is not None:
                total += convolution.bias.double()
            out[token] = F.silu(total) if convolution.silu else total
            window = seen[1:]
            row.leave(window, windows, token)
    return out


def apply_delta_rule(
    qkv: Tensor, strengths: Tensor, decays: Tensor, rule: DeltaRule, states: Tensor, layout: RaggedLayout
) -> Tensor:
    """See Recurrence; float64, and `states` is changed too."""
    key_size = rule.num_key_heads * rule.key_dim
    group = rule.num_value_heads // rule.num_key_heads
    queries, keys, values = torch.split(
        qkv.double(), [key_size, key_size, rule.num_value_heads * rule.value_dim], dim=-1
    )
    queries, keys = (_unit(_heads(part, rule.key_dim, group)) for part in (queries, keys))
    values = _heads(values, rule.value_dim, 1)
    kept = torch.exp(rule.rate.double() * F.softplus(decays.double() + rule.bias.double()))
    strength = torch.sigmoid(strengths.double())

    def step(state: Tensor, token: int) -> tuple[Tensor, Tensor]:
        state = state * kept[token, :, None, None]
        held = torch.einsum("hkv,hk->hv", state, keys[token])
        change = strength[token, :, None] * (values[token] - held)
        state = state + keys[token, :, :, None] * change[:, None, :]
        return state, torch.einsum("hkv,hk->hv", state, queries[token]) * rule.key_dim**-0.5

    return _fold(step, values, states, layout)


def scan(xbc: Tensor, steps: Tensor, space: StateSpace, states: Tensor, layout: RaggedLayout) -> Tensor:
    """See Recurrence; float64, and `states` is changed too."""
    group_size = space.num_groups * space.state_size
    group = space.num_heads // space.num_groups
    inputs, keys, queries = torch.split(
        xbc.double(), [space.num_heads * space.head_dim, group_size, group_size], dim=-1
    )
    inputs = _heads(inputs, space.head_dim, 1)
    keys, queries = (_heads(part, space.state_size, group) for part in (keys, queries))
    sizes = F.softplus(steps.double() + space.bias.double()).clamp(space.least_step, space.most_step)
    kept = torch.exp(space.rate.double() * sizes)

    def step(state: Tensor, token: int) -> tuple[Tensor, Tensor]:
        taken = sizes[token, :, None] * inputs[token]
        state = state * kept[token, :, None, None] + keys[token, :, :, None] * taken[:, None, :]
        read = torch.einsum("hkv,hk->hv", state, queries[token])
        return state, read + space.skip.double()[:, None] * inputs[token]

    return _fold(step, inputs, states, layout)


def gate(x: Tensor, gate: Tensor, norm: GatedNorm | None) -> Tensor:
    """See Recurrence; float64."""
    x, opened = x.double(), F.silu(gate.double())
    if norm is None:
        return x * opened
    if norm.gate_first:
        return _normed(x * opened, norm)
    return _normed(x, norm) * opened


def _normed(x: Tensor, norm: GatedNorm) -> Tensor:
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + norm.eps) * norm.weight.double()


def _fold(
    step: Callable[[Tensor, int], tuple[Tensor, Tensor]], values: Tensor, states: Tensor, layout: RaggedLayout
) -> Tensor:
    out = torch.empty(values.shape, dtype=torch.float64, device=values.device)
    for row in _rows(layout):
        state = states[row.slot].double()
        for token in row.tokens:
            state, out[token] = step(state, token)
            row.leave(state, states, token)
    return out


@dataclass(frozen=True, slots=True)
class _Row:
    slot: int
    tokens: range
    moves: bool
    mark: int  # tokens after which the state is wanted; 0: nowhere
    mark_slot: int

    def leave(self, state: Tensor, states: Tensor, token: int) -> None:
        """Writes the state after a token wherever it belongs."""
        if token - self.tokens.start + 1 == self.mark:
            states[self.mark_slot] = state.to(states.dtype)
        if self.moves and token == self.tokens[-1]:
            states[self.slot] = state.to(states.dtype)


def _rows(layout: RaggedLayout) -> Iterator[_Row]:
    assert layout.state_slots is not None, "a layer with a state needs its slots"
    nowhere = [0] * layout.num_rows
    marks = (nowhere, nowhere) if layout.marks is None else (layout.marks.widths.tolist(), layout.marks.slots.tolist())
    first = 0
    rows = zip(layout.state_slots.tolist(), layout.host_widths.tolist(), *marks, strict=True)
    for slot, width, mark, mark_slot in rows:
        yield _Row(slot, range(first, first + width), layout.moves_states, mark, mark_slot)
        first += width


def _heads(part: Tensor, dim: int, group: int) -> Tensor:
    """[T, heads × group, dim], each head repeated for the heads that it serves."""
    return part.reshape(len(part), -1, dim).repeat_interleave(group, dim=1)


def _unit(heads: Tensor) -> Tensor:
    return heads * torch.rsqrt(heads.square().sum(-1, keepdim=True) + LENGTH_EPS)
