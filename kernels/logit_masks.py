"""Bit masks over logits, in plain torch: one bit a token, set where it may come."""

import torch
from torch import Tensor


def unpack(bits: Tensor, size: int) -> Tensor:
    """bool [n, size] of bits int32 [n, W]: bit t % 32 of word t // 32 is column t."""
    shifts = torch.arange(8, dtype=torch.uint8, device=bits.device)
    # By bytes: a tensor of single bits as int32 would be four times as large.
    parts = bits.contiguous().view(torch.uint8)[:, :, None] >> shifts
    return (parts & 1).to(torch.bool).view(len(bits), -1)[:, :size]


def keep_allowed(logits: Tensor, index: Tensor, bits: Tensor) -> None:
    """Makes every token whose bit is not set impossible in the rows at `index` [n] of logits [N, V]."""
    for row, allowed in zip(index.tolist(), bits, strict=True):
        # Row by row: what is in between stays in the caches of a core, and rows of a batch are never copied.
        logits[row].masked_fill_(~unpack(allowed[None], logits.shape[1])[0], float("-inf"))
