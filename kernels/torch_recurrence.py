"""Recurrent layers over a ragged batch in plain torch: the back end of the CPU, and right on every device.

A row's results depend on that row alone, bit for bit.
"""

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812
from numpy.typing import NDArray
from torch import Tensor

from corymb.kernels.attention import RaggedLayout
from corymb.kernels.recurrence import LENGTH_EPS, Convolution, DeltaRule, GatedNorm, StateSpace
from corymb.kernels.torch_folds import Inputs, fold, marked


class TorchRecurrence:
    """Implements `Recurrence`."""

    def convolve(self, x: Tensor, convolution: Convolution, windows: Tensor, layout: RaggedLayout) -> Tensor:
        """See Recurrence."""
        assert layout.state_slots is not None, "a layer with a state needs its slots"
        if len(layout.host_widths) == len(x) and layout.marks is None:
            return _convolve(x.unsqueeze(1), convolution, windows, layout, None).squeeze(1)
        out = torch.empty_like(x)
        firsts = np.cumsum(layout.host_widths) - layout.host_widths
        for width in np.unique(layout.host_widths).tolist():
            rows = np.flatnonzero(layout.host_widths == width)
            tokens = torch.from_numpy(firsts[rows, None] + np.arange(width)).to(x.device)
            out[tokens] = _convolve(x[tokens], convolution, windows, layout, rows)
        return out

    def apply_delta_rule(
        self, qkv: Tensor, strengths: Tensor, decays: Tensor, rule: DeltaRule, states: Tensor, layout: RaggedLayout
    ) -> Tensor:
        """See Recurrence."""
        key_size, value_size = rule.num_key_heads * rule.key_dim, rule.num_value_heads * rule.value_dim
        group = rule.num_value_heads // rule.num_key_heads
        queries, keys, values = torch.split(qkv.float(), [key_size, key_size, value_size], dim=-1)
        queries, keys = (_unit(_heads(part, rule.key_dim)) for part in (queries, keys))
        inputs = Inputs(
            queries=queries.mul_(rule.key_dim**-0.5).repeat_interleave(group, dim=1),
            keys=keys.repeat_interleave(group, dim=1),
            values=_heads(values, rule.value_dim),
            decays=_softplus(decays.float() + rule.bias) * rule.rate,
            strengths=_sigmoid(strengths.float()),
        )
        return fold(inputs, states, layout).to(qkv.dtype)

    def scan(self, xbc: Tensor, steps: Tensor, space: StateSpace, states: Tensor, layout: RaggedLayout) -> Tensor:
        """See Recurrence."""
        group_size, group = space.num_groups * space.state_size, space.num_heads // space.num_groups
        x, keys, queries = torch.split(xbc.float(), [space.num_heads * space.head_dim, group_size, group_size], -1)
        x = _heads(x, space.head_dim)
        keys, queries = (_heads(part, space.state_size).repeat_interleave(group, dim=1) for part in (keys, queries))
        sizes = _softplus(steps.float() + space.bias).clamp_(space.least_step, space.most_step)
        inputs = Inputs(queries, keys, x * sizes.unsqueeze(-1), sizes * space.rate, strengths=None)
        return fold(inputs, states, layout).add_(x * space.skip.unsqueeze(-1)).to(xbc.dtype)

    def gate(self, x: Tensor, gate: Tensor, norm: GatedNorm | None) -> Tensor:
        """See Recurrence."""
        opened = _silu(gate.float())
        if norm is None:
            return opened.mul_(x).to(x.dtype)
        wide = x.float()
        if norm.gate_first:
            return _normed(opened.mul_(wide), norm).to(x.dtype)
        return _normed(wide, norm).mul_(opened).to(x.dtype)


def _convolve(
    x: Tensor, convolution: Convolution, windows: Tensor, layout: RaggedLayout, rows: NDArray[np.int64] | None
) -> Tensor:
    """Rows of one width, None for all: x [R, width, channels]."""
    slots = layout.state_slots
    assert slots is not None, "convolve has looked"
    slots = slots if rows is None else slots[torch.from_numpy(rows).to(x.device)]
    seen = torch.cat((windows.index_select(0, slots).to(x.dtype), x), dim=1)
    if layout.moves_states:
        windows.index_copy_(0, slots, seen[:, x.shape[1] :].to(windows.dtype))
    for nth, width, slot in marked(layout, rows) if rows is not None else ():
        windows[slot] = seen[nth, width : width + windows.shape[1]].to(windows.dtype)
    num_tokens = x.shape[1]
    total = seen[:, :num_tokens] * convolution.weight[0]
    for index in range(1, len(convolution.weight)):
        total.add_(seen[:, index : index + num_tokens] * convolution.weight[index])
    if convolution.bias is not None:
        total.add_(convolution.bias)
    return (_silu(total) if convolution.silu else total).to(x.dtype)


def _normed(x: Tensor, norm: GatedNorm) -> Tensor:
    return F.rms_norm(x, x.shape[-1:], None, norm.eps) * norm.weight


def _heads(part: Tensor, dim: int) -> Tensor:
    return part.reshape(len(part), -1, dim)


def _unit(heads: Tensor) -> Tensor:
    """Heads of length 1."""
    return heads * torch.rsqrt(heads.square().sum(-1, keepdim=True) + LENGTH_EPS)


# torch's own functions compute the last few elements of a tensor by another formula than those before.


def _silu(x: Tensor) -> Tensor:
    return x / torch.exp(-x).add_(1)


def _sigmoid(x: Tensor) -> Tensor:
    return torch.exp(-x).add_(1).reciprocal_()


def _softplus(x: Tensor) -> Tensor:
    return torch.exp(-x.abs()).log1p_().add_(x.clamp_min(0))
