"""Attention sinks: one more key of each query head, of value zero."""

import triton.language as tl

from corymb.kernels.triton_blocks import LOG2E
from corymb.kernels.triton_jit import jit


# fmt: off
@jit
def take_sinks(
    top: tl.tensor, norm: tl.tensor, total: tl.tensor, sinks: tl.tensor, head: tl.tensor, is_first: tl.tensor,
    GROUP: tl.constexpr, BLOCK_M: tl.constexpr,
) -> tl.tensor:
    """Lets the queries of a tile see their sinks, `sinks` [num_heads]; only in the tile's first part."""
    query = tl.arange(0, BLOCK_M)
    logit = tl.load(sinks + head * GROUP + query % GROUP) * LOG2E
    logit = tl.where(is_first, logit, float("-inf"))
    new_top = tl.maximum(top, logit)
    anchor = tl.where(new_top == float("-inf"), 0.0, new_top)
    shrink = tl.exp2(top - anchor)
    return new_top, norm * shrink + tl.exp2(logit - anchor), total * shrink[:, None]
# fmt: on
