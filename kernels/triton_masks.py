"""Applies bit masks to logits on a GPU."""

import triton.language as tl

from corymb.kernels.triton_jit import jit


# fmt: off
@jit
def mask_rows(
    logits: tl.tensor, index: tl.tensor, bits: tl.tensor, logit_stride: tl.tensor, bit_stride: tl.tensor,
    SIZE: tl.constexpr, BLOCK: tl.constexpr,
) -> None:
    """Program (n, c) sets logits[index[n], t] = -inf for the tokens t of chunk c whose bit of bits[n] is not set."""
    number = tl.program_id(0)
    row = tl.load(index + number).to(tl.int64)
    token = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    real = token < SIZE
    word = tl.load(bits + number.to(tl.int64) * bit_stride + token // 32, mask=real, other=-1)
    allowed = (word >> (token % 32)) & 1
    # Only what changes is written: a mask that allows nearly everything costs the reading of its bits.
    tl.store(logits + row * logit_stride + token, float("-inf"), mask=real & (allowed == 0))
# fmt: on
