"""A kernel that shows which lines of a weight are asked for ahead of its use."""

import triton.language as tl

from corymb.kernels.triton_jit import Count, jit
from corymb.kernels.triton_prefetch import share_places


@jit
def mark_share(
    out: tl.tensor,
    num_rows: "Count",
    stride: "Count",
    lines: "Count",
    PROGRAMS: tl.constexpr,  # noqa: N803
    ITEMS: tl.constexpr,  # noqa: N803
) -> None:
    """Program p sets the lines that `ask_for_share` asks for as one of PROGRAMS, of the weight's numbers out."""
    for start in range(tl.program_id(0) * 64, num_rows * lines, PROGRAMS * 64):
        index = start + tl.arange(0, 64)
        tl.store(out + share_places(index, num_rows, stride, lines, ITEMS), 1)
