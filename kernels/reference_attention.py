"""Attention as its definition says, one query at a time: what every back end is tested against."""

import torch
from torch import Tensor

from corymb.kernels.attention import AttentionSpec, KVLayer, RaggedLayout


def attend(q: Tensor, layout: RaggedLayout, spec: AttentionSpec, cache: KVLayer) -> Tensor:
    """Returns float64 [T, num_heads, head_dim] of q [T, num_heads, head_dim], with the pools already written."""
    out = torch.empty(q.shape, dtype=torch.float64, device=q.device)
    token = 0
    for row, width, start in zip(layout.host_rows, layout.host_widths, layout.host_starts, strict=True):
        for position in range(int(start), int(start + width)):
            keys, values = _seen(layout, int(row), position, spec, cache)
            out[token] = _attend_one(q[token].double(), keys, values, spec)
            token += 1
    return out


def _seen(layout: RaggedLayout, row: int, position: int, spec: AttentionSpec, cache: KVLayer) -> tuple[Tensor, Tensor]:
    """Keys and values [L, num_heads, head_dim] that a query sees."""
    first = 0 if spec.window is None else max(0, position - spec.window + 1)
    slots = layout.table[row, first : position + 1].long()
    if spec.window is not None:
        assert layout.full_to_sliding is not None, "a window needs a sliding pool"
        slots = layout.full_to_sliding[slots].long()
    group = spec.num_heads // spec.num_kv_heads
    return (
        cache.keys[slots].double().repeat_interleave(group, dim=1),
        cache.values[slots].double().repeat_interleave(group, dim=1),
    )


def _attend_one(query: Tensor, keys: Tensor, values: Tensor, spec: AttentionSpec) -> Tensor:
    scores = torch.einsum("hd,lhd->hl", query, keys) * spec.scale
    if spec.soft_cap is not None:
        scores = torch.tanh(scores / spec.soft_cap) * spec.soft_cap
    if spec.sinks is not None:
        scores = torch.cat((scores, spec.sinks.double()[:, None]), dim=1)
    return torch.einsum("hl,lhd->hd", scores.softmax(-1)[:, : len(values)], values)
