"""Bit masks over logits, in plain torch: one bit a token, set where it may come."""

import functools

import torch
from torch import Tensor


def keep_allowed(logits: Tensor, index: Tensor, bits: Tensor) -> None:
    """Makes every token whose bit is not set impossible in the rows at `index` [n] of logits [N, V]."""
    octets = bits.contiguous().view(torch.uint8).to(torch.int32)
    spread = _spread(logits.device)
    for row, eights in zip(index.tolist(), octets, strict=True):
        # Row by row: what is in between stays in the caches of a core. Adding is many times faster than filling.
        logits[row].add_(spread.index_select(0, eights).view(-1)[: logits.shape[1]])


@functools.cache
def _spread(device: torch.device) -> Tensor:
    """What the eight bits of every byte add to eight logits: 0 or -inf, float32 [256, 8]."""
    octets = torch.arange(256, dtype=torch.uint8, device=device)
    allowed = (octets[:, None] >> torch.arange(8, dtype=torch.uint8, device=device)) & 1
    return torch.where(allowed.bool(), 0.0, float("-inf"))
