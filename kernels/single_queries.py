"""Attention of rows with one query each, which is what decoding is."""

import warnings
from dataclasses import dataclass, field

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812
from numpy.typing import NDArray
from torch import Tensor

from corymb.kernels.attention import AttentionSpec, KVLayer

Int32 = NDArray[np.int32]

# Padding to a multiple of the widest vector keeps each lane of a softmax's sum at the same elements, whatever the
# length: a row's result stays the same bit for bit beside longer rows.
LANES = 16
MAX_PADDING = 1.5  # padded length of a group ÷ its rows' own lengths


def group_by_length(lengths: Int32) -> list[NDArray[np.int64]]:
    """Splits rows into groups that waste little when padded to their longest; indices into `lengths`."""
    order = np.argsort(-lengths, kind="stable")
    groups: list[NDArray[np.int64]] = []
    start = 0
    while start < len(order):
        longest = int(lengths[order[start]])
        own = np.cumsum(lengths[order[start:]] + LANES)  # short rows cost something too
        padded = (longest + LANES) * np.arange(1, len(own) + 1)
        end = start + int(np.flatnonzero(padded <= MAX_PADDING * own)[-1]) + 1
        groups.append(np.sort(order[start:end]))
        start = end
    return groups


@dataclass(frozen=True, slots=True)
class Pattern:
    """Which keys each query head meets, as a sparse matrix [S × num_heads, num_slots × num_kv_heads]."""

    matrix: Tensor  # CSR; its values are `hidden`, or 0 where scores are capped before padding is hidden
    hidden: Tensor  # float32 [S × num_heads × L], 0 for a key and -inf for padding
    columns: Tensor  # int32 [S × num_heads × L]
    offsets: Tensor  # int32 [S × num_heads + 1]


@dataclass(frozen=True, slots=True)
class SingleQueries:
    """S rows and the keys they see, padded to L with their last key."""

    tokens: Tensor  # int64 [S], of the step's tokens
    slots: Tensor  # int64 [S, L], of the keys
    hidden: Tensor  # float32 [S, L], 0 for a key and -inf for padding
    patterns: dict[tuple[int, int, bool], Pattern] = field(default_factory=dict)  # made when first needed

    def attend(self, q: Tensor, spec: AttentionSpec, cache: KVLayer) -> Tensor:
        """Returns [S, num_heads, value_dim] of q [S, num_heads, head_dim]."""
        if q.dtype == torch.float32 and q.device.type == "cpu":
            return self._attend_in_place(q, spec, cache)
        return self._attend_gathered(q, spec, cache)

    def _attend_in_place(self, q: Tensor, spec: AttentionSpec, cache: KVLayer) -> Tensor:
        """Reads keys and values where they lie: twice as fast on a CPU as gathering them first."""
        pattern = self._pattern(spec, len(cache.keys))
        rows, dim = len(pattern.offsets) - 1, spec.head_dim
        # Each score is one dot product on its own, added to the matrix's value there.
        scores = torch.sparse.sampled_addmm(
            pattern.matrix,
            q.reshape(rows, dim),
            cache.keys.view(-1, dim).t(),
            alpha=spec.scale,
        ).values()
        if spec.soft_cap is not None:
            scores = capped(scores, spec.soft_cap).add_(pattern.hidden)
        weights = weights_of(scores.view(-1, spec.num_heads, self.slots.shape[1]), spec.sinks)
        # Latents are a part of their keys, which are read as they lie.
        values = cache.values if spec.latent_dim is None else cache.keys
        attended = F.embedding_bag(
            pattern.columns,
            values.view(-1, dim),
            pattern.offsets,
            mode="sum",
            per_sample_weights=weights.reshape(-1),
            include_last_offset=True,
        )
        return attended.view(-1, spec.num_heads, dim)[..., : spec.value_dim]

    def _attend_gathered(self, q: Tensor, spec: AttentionSpec, cache: KVLayer) -> Tensor:
        """Copies keys and values together, then attends densely."""
        rows, group = len(self.slots), spec.num_heads // spec.num_kv_heads
        queries = q.reshape(rows, spec.num_kv_heads, group, spec.head_dim)
        keys, values = cache.keys[self.slots].transpose(1, 2), cache.values[self.slots].transpose(1, 2)
        scores = torch.matmul(queries, keys.transpose(-1, -2)).float() * spec.scale
        scores = capped(scores, spec.soft_cap) + self.hidden[:, None, None]
        weights = weights_of(scores.view(rows, spec.num_heads, -1), spec.sinks).view(scores.shape)
        return torch.matmul(weights.to(q.dtype), values).view(rows, spec.num_heads, spec.value_dim)

    def _pattern(self, spec: AttentionSpec, num_slots: int) -> Pattern:
        key = (spec.num_heads, spec.num_kv_heads, spec.soft_cap is not None)
        if key not in self.patterns:
            self.patterns[key] = self._make_pattern(spec, num_slots)
        return self.patterns[key]

    def _make_pattern(self, spec: AttentionSpec, num_slots: int) -> Pattern:
        rows, length = self.slots.shape
        num_rows = rows * spec.num_heads
        heads = torch.arange(spec.num_heads, dtype=torch.int32) // (spec.num_heads // spec.num_kv_heads)
        columns = (self.slots.int()[:, None] * spec.num_kv_heads + heads[:, None]).view(-1)
        offsets = torch.arange(0, (num_rows + 1) * length, length, dtype=torch.int32)
        hidden = self.hidden[:, None].expand(rows, spec.num_heads, length).reshape(-1)
        values = hidden if spec.soft_cap is None else torch.zeros_like(hidden)
        shape = (num_rows, num_slots * spec.num_kv_heads)
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="Sparse CSR tensor support is in beta state")
            matrix = torch.sparse_csr_tensor(offsets, columns, values, shape, check_invariants=False)
        return Pattern(matrix, hidden, columns, offsets)


def weights_of(scores: Tensor, sinks: Tensor | None) -> Tensor:
    """The softmax of scores [S, num_heads, L], in which each head's sink takes a share."""
    if sinks is None:
        return scores.softmax(-1)
    # In a vector of its own, whose other lanes are empty: see LANES.
    last = torch.full((len(sinks), LANES), -torch.inf, device=scores.device)
    last[:, 0] = sinks
    return torch.cat((scores, last.expand(len(scores), -1, -1)), dim=-1).softmax(-1)[..., : scores.shape[-1]]


def capped(scores: Tensor, cap: float | None) -> Tensor:
    """Bounds scores smoothly between -cap and cap; padding, at -inf, is not for it."""
    return scores if cap is None else torch.tanh(scores / cap) * cap
