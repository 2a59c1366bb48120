"""Attention as its definition says, one query at a time: what every back end is tested against."""

from collections.abc import Sequence

import torch
from torch import Tensor

from corymb.kernels.attention import AttentionSpec, KVLayer, RaggedLayout


def attend(
    q: Tensor, layout: RaggedLayout, spec: AttentionSpec, cache: KVLayer, chosen: Sequence[Sequence[int]] | None = None
) -> Tensor:
    """Returns float64 [T, num_heads, value_dim] of q [T, num_heads, head_dim], with the pools already written.

    `chosen`: the positions that each token attends to; None for all that it sees.
    """
    out = torch.empty((*q.shape[:2], spec.value_dim), dtype=torch.float64, device=q.device)
    token = 0
    for row, width, start in zip(layout.host_rows, layout.host_widths, layout.host_starts, strict=True):
        for position in range(int(start), int(start + width)):
            keys, values = _seen(layout, int(row), position, spec, cache)
            if chosen is not None:
                keys, values = keys[chosen[token]], values[chosen[token]]
            out[token] = _attend_one(q[token].double(), keys, values, spec)
            token += 1
    return out


def choose(q: Tensor, weights: Tensor, layout: RaggedLayout, index_keys: Tensor, top_k: int) -> list[list[int]]:
    """The positions that each token attends to, in their order; see attention.LatentAttention."""
    chosen: list[list[int]] = []
    for row, width, start in zip(layout.host_rows, layout.host_widths, layout.host_starts, strict=True):
        for position in range(int(start), int(start + width)):
            token = len(chosen)
            keys = index_keys[layout.table[int(row), : position + 1].long()].double()
            products = torch.einsum("hd,ld->hl", q[token].double(), keys).relu()
            scores = (weights[token].double() @ products).tolist()
            best = sorted(range(position + 1), key=lambda key: (-scores[key], key))[:top_k]
            chosen.append(sorted(best))
    return chosen


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
