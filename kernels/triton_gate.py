"""Gates with norms: what recurrent layers do to their outputs."""

import triton.language as tl

from corymb.kernels.triton_activations import silu
from corymb.kernels.triton_jit import Count, jit


# fmt: off
@jit
def gate_heads(
    x: tl.tensor, gate: tl.tensor, weight: tl.tensor, out: tl.tensor,
    gate_stride: tl.tensor, num_lines: "Count", eps: tl.tensor,
    HEADS: tl.constexpr, DIM: tl.constexpr, WEIGHTS: tl.constexpr, BLOCK: tl.constexpr, BLOCK_LINES: tl.constexpr,
    NORM: tl.constexpr, GATE_FIRST: tl.constexpr,
) -> None:
    """Program i gates BLOCK_LINES heads; line t × HEADS + h is head h of token t. WEIGHTS: heads that the norm tells
    apart, 1 or all."""
    line = tl.program_id(0) * BLOCK_LINES + tl.arange(0, BLOCK_LINES)
    dim = tl.arange(0, BLOCK)
    inside = (line < num_lines)[:, None] & (dim < DIM)[None, :]
    place = line.to(tl.int64)[:, None] * DIM + dim[None, :]
    value = tl.load(x + place, mask=inside, other=0.0).to(tl.float32)
    gate_place = (line // HEADS).to(tl.int64) * gate_stride + (line % HEADS) * DIM
    opened = silu(tl.load(gate + gate_place[:, None] + dim[None, :], mask=inside, other=0.0).to(tl.float32))
    if NORM:
        if GATE_FIRST:
            value = value * opened
        inverse = 1.0 / tl.sqrt(tl.sum(value * value, 1) / DIM + eps)
        weights = tl.load(weight + (line % WEIGHTS)[:, None] * DIM + dim[None, :], mask=inside, other=0.0)
        value = value * inverse[:, None] * weights
        if not GATE_FIRST:
            value = value * opened
    else:
        value = value * opened
    tl.store(out + place, value.to(out.dtype.element_ty), mask=inside)
# fmt: on
