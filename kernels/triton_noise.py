"""The noise of `noise`, in Triton: the same bits, so the same seed draws the same tokens on every device."""

import triton.language as tl
from triton.language.extra import libdevice

from corymb.kernels.triton_jit import jit

STRIDE = tl.constexpr(0x9E3779B1 - (1 << 32))
FIRST = tl.constexpr(0x7FEB352D)
SECOND = tl.constexpr(0x846CA68B - (1 << 32))
LARGEST = tl.constexpr(1.0 - 2.0**-24)


# fmt: off
@jit
def exponential(first_key: tl.tensor, second_key: tl.tensor, token_ids: tl.tensor, PORTABLE: tl.constexpr) -> tl.tensor:
    """Standard exponential variates for a row's keys and int32 token ids. PORTABLE avoids the device's own log1p."""
    bits = token_ids * STRIDE + first_key
    bits ^= (bits >> 16) & 0xFFFF
    bits *= FIRST
    bits ^= (bits >> 15) & 0x1FFFF
    bits = (bits + second_key) * SECOND
    bits ^= (bits >> 16) & 0xFFFF
    bits *= FIRST
    bits ^= (bits >> 15) & 0x1FFFF
    uniform = tl.minimum(((bits & 0x7FFFFFFF).to(tl.float32) + 0.5) * (1.0 / (1 << 31)), LARGEST)
    if PORTABLE:
        rest = 1.0 - uniform
        # log1p out of log: what rounding took from 1 - u is put back as a factor.
        return tl.where(rest == 1.0, uniform, tl.log(rest) * (uniform / (rest - 1.0)))
    return -libdevice.log1p(-uniform)
# fmt: on
