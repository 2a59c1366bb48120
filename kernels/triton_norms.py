"""RMS norms, with the residual's addition in the same pass."""

import triton.language as tl

from corymb.kernels.triton_jit import Count, jit
from corymb.kernels.triton_prefetch import ask_for_share


# fmt: off
@jit
def norm_rows(
    x: tl.tensor, residual: tl.tensor, weight: tl.tensor, out: tl.tensor,
    x_stride: tl.tensor, residual_stride: tl.tensor, out_stride: tl.tensor, eps: tl.tensor,
    ahead: tl.tensor, ahead_rows: "Count", ahead_stride: "Count", ahead_lines: "Count",
    SIZE: tl.constexpr, BLOCK: tl.constexpr, ADD: tl.constexpr, EARLY: tl.constexpr, AHEAD: tl.constexpr,
) -> None:
    """Program AHEAD + r norms row r. With ADD, the row is first added to the residual's, which keeps the sum. Those
    before ask for the beginning of the weight `ahead`, which nothing waits for."""
    if AHEAD > 0:  # noqa: SIM102 - without it there is no second condition
        if tl.program_id(0) < AHEAD:
            ask_for_share(ahead, tl.program_id(0), AHEAD, ahead_rows, ahead_stride, ahead_lines, 256)
            return
    index = tl.arange(0, BLOCK)
    inside = index < SIZE
    scale = tl.load(weight + index, mask=inside, other=0.0)  # does not depend on the kernel before
    if EARLY:
        tl.extra.cuda.gdc_wait()
        tl.extra.cuda.gdc_launch_dependents()
    row = (tl.program_id(0) - AHEAD).to(tl.int64)
    value = tl.load(x + row * x_stride + index, mask=inside, other=0.0)
    if ADD:
        place = residual + row * residual_stride + index
        value = (tl.load(place, mask=inside, other=0.0).to(tl.float32) + value.to(tl.float32)).to(value.dtype)
        tl.store(place, value, mask=inside)
    wide = value.to(tl.float32)
    inverse = 1.0 / tl.sqrt(tl.sum(wide * wide, 0) / SIZE + eps)
    tl.store(out + row * out_stride + index, (wide * inverse * scale).to(out.dtype.element_ty), mask=inside)
# fmt: on
