"""A kernel that shows the noise which sampling uses."""

import triton.language as tl

from corymb.kernels import triton_noise
from corymb.kernels.triton_jit import jit


@jit
def write_noise(keys: tl.tensor, out: tl.tensor, PORTABLE: tl.constexpr) -> None:  # noqa: N803
    """Program r writes the noise of 1,024 tokens of row r."""
    row = tl.program_id(0)
    token = tl.arange(0, 1024)
    noise = triton_noise.exponential(tl.load(keys + 2 * row), tl.load(keys + 2 * row + 1), token, PORTABLE)
    tl.store(out + row * 1024 + token, noise)
