"""Attention of blocks whose tokens see what lies before the block, and each other in both directions."""

from dataclasses import dataclass
from typing import Protocol

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from corymb.kernels.attention import AttentionSpec, KVLayer


@dataclass(frozen=True, slots=True)
class Contexts:
    """What lies before R blocks of equal length."""

    table: Tensor  # int32 [num_rows, context_length], the page table
    rows: Tensor  # int64 [R], rows of it
    lengths: Tensor  # int32 [R], tokens before each block, which begins at that position


@dataclass(frozen=True, slots=True)
class BlockHeads:
    """Of the tokens of R blocks of B each."""

    queries: Tensor  # [R, B, num_heads, head_dim]
    keys: Tensor  # [R, B, num_kv_heads, head_dim]
    values: Tensor  # the same


class BlockAttention(Protocol):
    """A back end: `plan` once a step, `attend` once a layer."""

    def plan(self, contexts: Contexts) -> None:
        """Says where the blocks stand."""
        ...

    def attend(self, heads: BlockHeads, cache: KVLayer, *, spec: AttentionSpec, causal: bool) -> Tensor:
        """Returns [R, B, num_heads, head_dim]. Nothing of the blocks is kept. With a window, a token sees as many as
        that up to its own, and, if `causal`, none of its block that is behind it."""
        ...


class TorchBlocks:
    """A BlockAttention in plain torch. Waits for the lengths."""

    def __init__(self) -> None:
        self._slots: list[Tensor] = []  # of what lies before each block, by position

    def plan(self, contexts: Contexts) -> None:
        """See BlockAttention."""
        rows, lengths = contexts.rows.tolist(), contexts.lengths.tolist()
        self._slots = [contexts.table[row, :length].long() for row, length in zip(rows, lengths, strict=True)]

    def attend(self, heads: BlockHeads, cache: KVLayer, *, spec: AttentionSpec, causal: bool) -> Tensor:
        """See BlockAttention."""
        blocks = zip(heads.queries, heads.keys, heads.values, self._slots, strict=True)
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
