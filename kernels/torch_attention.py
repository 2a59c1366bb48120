"""Attention over a ragged batch in plain torch: the back end of the CPU, and right on every device.

A row's result depends on that row alone, bit for bit: never on the rows beside it or on how far they are padded.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812
from numpy.typing import NDArray
from torch import Tensor

from corymb.kernels.attention import AttentionSpec, Chosen, KVLayer, RaggedLayout
from corymb.kernels.single_queries import LANES, SingleQueries, capped, group_by_length
from corymb.kernels.torch_index import attend_chosen, choose_keys

Index = NDArray[np.signedinteger[Any]]

QUERY_BLOCK = 512  # queries of a row that attend at once: bounds the logits' memory and what a window wastes


@dataclass(frozen=True, slots=True)
class Block:
    """Consecutive queries of one row."""

    first: int  # of the step's tokens
    last: int  # exclusive
    slots: Tensor  # int64 [L], of the keys that any of the queries sees, in order of position
    mask: Tensor | None  # bool [queries, L]; None: causal, queries and keys being the same tokens


@dataclass(frozen=True, slots=True)
class Span:
    """Which positions the queries of some rows see: from `firsts` up to, but not including, `ends`."""

    firsts: Index
    ends: Index


@dataclass(frozen=True, slots=True)
class WindowPlan:
    """What all of a step's layers with one window have in common."""

    new_slots: Tensor  # int64 [T]
    singles: list[SingleQueries]  # rows with one new token
    blocks: list[Block]  # rows with more


class TorchAttention:
    """An attention back end. Keeps the layout it planned last."""

    def __init__(self) -> None:
        self._layout: RaggedLayout | None = None
        self._plans: dict[int | None, WindowPlan] = {}

    def plan(self, layout: RaggedLayout) -> None:
        """See Attention."""
        self._layout = layout
        self._plans = {}

    def run(self, q: Tensor, k: Tensor, v: Tensor, spec: AttentionSpec, cache: KVLayer) -> Tensor:
        """See Attention."""
        plan = self._plan_for(spec.window)
        cache.keys.index_copy_(0, plan.new_slots, k)
        if spec.latent_dim is None:
            cache.values.index_copy_(0, plan.new_slots, v)
        if len(plan.singles) == 1 and not plan.blocks:
            return plan.singles[0].attend(q, spec, cache)
        out = torch.empty((*q.shape[:2], spec.value_dim), dtype=q.dtype, device=q.device)
        for block in plan.blocks:
            out[block.first : block.last] = _attend(q[block.first : block.last], block, spec, cache)
        for single in plan.singles:
            out.index_copy_(0, single.tokens, single.attend(q.index_select(0, single.tokens), spec, cache))
        return out

    def run_latent(
        self, q: Tensor, latents: Tensor, spec: AttentionSpec, cache: KVLayer, chosen: Chosen | None
    ) -> Tensor:
        """See LatentAttention."""
        keys = latents.unsqueeze(1)
        if chosen is None:
            return self.run(q, keys, keys, spec, cache)
        cache.keys.index_copy_(0, self._plan_for(None).new_slots, keys)
        return attend_chosen(q, chosen, spec, cache)

    def choose(self, q: Tensor, weights: Tensor, keys: Tensor, spec: AttentionSpec, cache: KVLayer) -> Chosen:
        """See LatentAttention."""
        assert self._layout is not None, "plan comes before choose"
        assert spec.index is not None, "only layers with an index choose"
        assert cache.index_keys is not None, "only layers with an index choose"
        cache.index_keys.index_copy_(0, self._layout.slots, keys)
        return choose_keys(q, weights, self._layout, cache.index_keys, spec.index.top_k)

    def _plan_for(self, window: int | None) -> WindowPlan:
        assert self._layout is not None, "plan comes before run"
        if window not in self._plans:
            self._plans[window] = _plan(self._layout, window)
        return self._plans[window]


def _plan(layout: RaggedLayout, window: int | None) -> WindowPlan:
    new_slots = layout.slots if window is None else layout.sliding_slots
    assert new_slots is not None, "a window needs a sliding pool"
    blocks = [block for row in np.flatnonzero(layout.host_widths > 1) for block in _blocks(layout, int(row), window)]
    return WindowPlan(new_slots, _singles(layout, window), blocks)


def _singles(layout: RaggedLayout, window: int | None) -> list[SingleQueries]:
    rows = np.flatnonzero(layout.host_widths == 1)
    ends = layout.host_starts[rows] + 1
    firsts = _first_seen(ends - 1, window)
    tokens = (np.cumsum(layout.host_widths) - layout.host_widths)[rows]
    return [
        _padded(layout, rows[group], Span(firsts[group], ends[group]), tokens[group], window)
        for group in group_by_length(ends - firsts)
    ]


def _padded(layout: RaggedLayout, rows: Index, span: Span, tokens: Index, window: int | None) -> SingleQueries:
    length = -(-int((span.ends - span.firsts).max()) // LANES) * LANES
    positions = span.firsts[:, None] + np.arange(length)
    # Padding repeats the last key: what lies in a slot that nobody wrote may not even be a number.
    slots = _slots(layout, layout.host_rows[rows][:, None], np.minimum(positions, span.ends[:, None] - 1), window)
    hidden = np.where(positions < span.ends[:, None], np.float32(0), np.float32(-np.inf))
    device = slots.device
    return SingleQueries(torch.from_numpy(tokens).to(device), slots, torch.from_numpy(hidden).to(device))


def _blocks(layout: RaggedLayout, row: int, window: int | None) -> Iterator[Block]:
    start, width = int(layout.host_starts[row]), int(layout.host_widths[row])
    token = int(layout.host_widths[:row].sum())
    for first in range(0, width, QUERY_BLOCK):
        last = min(first + QUERY_BLOCK, width)
        yield _block(layout, row, range(start + first, start + last), token + first, window)


def _block(layout: RaggedLayout, row: int, positions: range, token: int, window: int | None) -> Block:
    first_key = int(_first_seen(np.array(positions.start), window))
    keys = np.arange(first_key, positions.stop)
    slots = _slots(layout, layout.host_rows[row], keys, window)
    queries = np.array(positions)[:, None]
    causal = first_key == positions.start and (window is None or window >= len(keys))
    seen = (keys <= queries) & (keys >= _first_seen(queries, window))
    mask = None if causal else torch.from_numpy(seen).to(slots.device)
    return Block(token, token + len(positions), slots, mask)


def _first_seen(positions: Index, window: int | None) -> Index:
    """The first position that each of these sees."""
    return np.zeros_like(positions) if window is None else np.maximum(positions - window + 1, 0)


def _slots(layout: RaggedLayout, rows: Index, positions: Index, window: int | None) -> Tensor:
    device = layout.table.device
    slots = layout.table[torch.as_tensor(rows, device=device).long(), torch.as_tensor(positions, device=device).long()]
    if window is None:
        return slots.long()
    assert layout.full_to_sliding is not None, "a window needs a sliding pool"
    return layout.full_to_sliding[slots.long()].long()


def _attend(q: Tensor, block: Block, spec: AttentionSpec, cache: KVLayer) -> Tensor:
    """Returns [queries, num_heads, head_dim]."""
    group = spec.num_heads // spec.num_kv_heads
    # [num_kv_heads, group, tokens, head_dim]: each key head is read in place by the query heads that share it.
    queries = q.reshape(len(q), spec.num_kv_heads, group, spec.head_dim).permute(1, 2, 0, 3)
    keys, values = (
        pool.index_select(0, block.slots).transpose(0, 1).unsqueeze(1).expand(-1, group, -1, -1)
        for pool in (cache.keys, cache.values)
    )
    if spec.soft_cap is None and spec.sinks is None:
        attended = F.scaled_dot_product_attention(
            queries, keys, values, attn_mask=block.mask, is_causal=block.mask is None, scale=spec.scale
        )
    else:
        attended = _attend_by_steps(queries, keys, values, block, spec)
    return attended.permute(2, 0, 1, 3).reshape(len(q), spec.num_heads, spec.value_dim)


def _attend_by_steps(queries: Tensor, keys: Tensor, values: Tensor, block: Block, spec: AttentionSpec) -> Tensor:
    scores = capped(torch.matmul(queries, keys.transpose(-1, -2)).float() * spec.scale, spec.soft_cap)
    num_queries, num_keys = scores.shape[-2:]
    seen = block.mask
    if seen is None:
        seen = torch.ones(num_queries, num_keys, dtype=torch.bool, device=scores.device).tril()
    scores = scores.masked_fill_(~seen, -torch.inf)
    if spec.sinks is not None:
        sinks = spec.sinks.view(spec.num_kv_heads, -1, 1, 1).expand(-1, -1, num_queries, 1)
        scores = torch.cat((scores, sinks), dim=-1)
    return torch.matmul(scores.softmax(-1)[..., :num_keys].to(queries.dtype), values)
