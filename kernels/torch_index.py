"""Sparse attention in plain torch: an index chooses each token's keys, and the token attends to those alone.

A row's choices and results depend on that row alone, bit for bit.
"""

import torch
from torch import Tensor

from corymb.kernels.attention import AttentionSpec, Chosen, KVLayer, RaggedLayout
from corymb.kernels.single_queries import LANES, SingleQueries

MOST_SCORES = 1 << 22  # of one pass, over all heads: bounds its memory


def choose_keys(q: Tensor, weights: Tensor, layout: RaggedLayout, index_keys: Tensor, top_k: int) -> Chosen:
    """See LatentAttention.choose; the new tokens' keys are stored already."""
    slots = torch.zeros((len(q), top_k), dtype=torch.int32, device=q.device)
    counts = (layout.positions + 1).clamp(max=top_k).int()
    token = 0
    for row, width, start in zip(
        layout.host_rows.tolist(), layout.host_widths.tolist(), layout.host_starts.tolist(), strict=True
    ):
        of_row = layout.table[row, : start + width]
        keys = index_keys[of_row.long()].float()
        step = max(MOST_SCORES // (len(keys) * q.shape[1]), 1)
        for first in range(0, width, step):
            last = min(first + step, width)
            tokens = slice(token + first, token + last)
            chosen = _best(_scores(q[tokens], weights[tokens], keys), start + first, top_k)
            slots[tokens, : chosen.shape[1]] = of_row[chosen]
        token += width
    return Chosen(slots, counts)


def attend_chosen(q: Tensor, chosen: Chosen, spec: AttentionSpec, cache: KVLayer) -> Tensor:
    """Returns [T, num_heads, value_dim] of q [T, num_heads, head_dim]."""
    length = -(-int(chosen.counts.max()) // LANES) * LANES
    place = torch.arange(length, device=q.device)
    step = max(MOST_SCORES // (length * spec.num_heads), 1)
    parts = []
    for first in range(0, len(q), step):
        tokens = slice(first, first + step)
        counts = chosen.counts[tokens, None]
        # Padding repeats the last key: what lies in a slot that nobody wrote may not even be a number.
        slots = chosen.slots[tokens].gather(1, torch.minimum(place, counts - 1).long())
        hidden = torch.zeros(slots.shape, device=q.device).masked_fill_(place >= counts, -torch.inf)
        parts.append(SingleQueries(place[:0], slots.long(), hidden).attend(q[tokens], spec, cache))
    return torch.cat(parts)


def _scores(q: Tensor, weights: Tensor, keys: Tensor) -> Tensor:
    """Returns float32 [T, L]."""
    products = torch.matmul(q.float(), keys.t()).relu_()
    return torch.matmul(weights.unsqueeze(1), products).squeeze(1)


def _best(scores: Tensor, start: int, top_k: int) -> Tensor:
    """The positions [T, K] of the best keys of tokens from position `start` on, in their order; later ones, which a
    token does not see, stand at the end."""
    positions = torch.arange(scores.shape[1], device=scores.device)
    own = torch.arange(start, start + len(scores), device=scores.device)[:, None]
    scores = scores.masked_fill(positions > own, -torch.inf)
    # Stable, so that the earlier one of equals comes first.
    return scores.sort(dim=-1, descending=True, stable=True).indices[:, :top_k].sort(dim=-1).values
