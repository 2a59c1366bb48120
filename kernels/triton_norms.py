"""RMS norms, with the residual's addition in the same pass."""

import triton.language as tl

from corymb.kernels.triton_jit import jit


# fmt: off
@jit
def norm_rows(
    x: tl.tensor, residual: tl.tensor, weight: tl.tensor, out: tl.tensor,
    x_stride: tl.tensor, residual_stride: tl.tensor, out_stride: tl.tensor, eps: tl.tensor,
    SIZE: tl.constexpr, BLOCK: tl.constexpr, ADD: tl.constexpr, EARLY: tl.constexpr,
) -> None:
    """Program r norms row r. With ADD, the row is first added to the residual's, which keeps the sum."""
    index = tl.arange(0, BLOCK)
    inside = index < SIZE
    scale = tl.load(weight + index, mask=inside, other=0.0)  # does not depend on the kernel before
    if EARLY:
        tl.extra.cuda.gdc_wait()
        tl.extra.cuda.gdc_launch_dependents()
    row = tl.program_id(0).to(tl.int64)
    value = tl.load(x + row * x_stride + index, mask=inside, other=0.0)
    if ADD:
        place = residual + row * residual_stride + index
        value = (tl.load(place, mask=inside, other=0.0).to(tl.float32) + value.to(tl.float32)).to(value.dtype)
        tl.store(place, value, mask=inside)
    wide = value.to(tl.float32)
    inverse = 1.0 / tl.sqrt(tl.sum(wide * wide, 0) / SIZE + eps)
    tl.store(out + row * out_stride + index, (wide * inverse * scale).to(out.dtype.element_ty), mask=inside)
# fmt: on
