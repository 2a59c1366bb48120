"""Attention of blocks whose tokens see what lies before the block, and each other in both directions."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from corymb.kernels.attention import AttentionSpec, KVLayer


@dataclass(frozen=True, slots=True)
class Contexts:
    """What lies before R blocks of equal length."""

    slots: Sequence[Tensor]  # int64 [L_r] each: the slots of positions 0 … L_r - 1, where block r begins


@dataclass(frozen=True, slots=True)
class BlockHeads:
    """Of the tokens of R blocks of B each."""

    queries: Tensor  # [R, B, num_heads, head_dim]
    keys: Tensor  # [R, B, num_kv_heads, head_dim]
    values: Tensor  # the same


def attend_blocks(
    heads: BlockHeads, contexts: Contexts, cache: KVLayer, *, spec: AttentionSpec, causal: bool
) -> Tensor:
    """Returns [R, B, num_heads, head_dim]. Nothing of the blocks is kept. With a window, a token sees as many as
    that up to its own, and, if `causal`, none of its block that is behind it."""
    blocks = zip(heads.queries, heads.keys, heads.values, contexts.slots, strict=True)
    return torch.stack([_attend(BlockHeads(*block), slots, cache, spec, causal=causal) for *block, slots in blocks])


def _attend(block: BlockHeads, slots: Tensor, cache: KVLayer, spec: AttentionSpec, *, causal: bool) -> Tensor:
    """Of one block, without its first dimension."""
    mask: Tensor | None = None
    if spec.window is not None:
        slots = slots[max(0, len(slots) + 1 - spec.window) :]  # of the block's first token; the others see fewer
        mask = _mask(len(slots), len(block.queries), spec.window, causal=causal, device=slots.device)
    attended = F.scaled_dot_product_attention(
        block.queries.transpose(0, 1),
        torch.cat((cache.keys[slots], block.keys)).transpose(0, 1),
        torch.cat((cache.values[slots], block.values)).transpose(0, 1),
        attn_mask=mask,
        scale=spec.scale,
        enable_gqa=True,
    )
    return attended.transpose(0, 1)


def _mask(num_context: int, num_slots: int, window: int, *, causal: bool, device: torch.device) -> Tensor:
    """Bool [num_slots, num_context + num_slots]."""
    keys = torch.arange(num_context + num_slots, device=device)
    tokens = torch.arange(num_context, num_context + num_slots, device=device)[:, None]
    seen = keys > tokens - window
    return seen & (keys <= tokens) if causal else seen
