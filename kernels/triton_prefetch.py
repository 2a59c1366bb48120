"""Asks for memory ahead of its use: what a kernel does while the one before it still runs."""

import triton.language as tl

from corymb.kernels.triton_jit import jit

LINE_BYTES = tl.constexpr(128)


@jit
def prefetch_lines(pointers: tl.tensor) -> None:
    """Brings the lines that hold these addresses into the second level of cache."""
    tl.inline_asm_elementwise(
        "prefetch.global.L2 [$1]; mov.b32 $0, 0;",
        "=r,l",
        [pointers.to(tl.int64)],
        dtype=tl.int32,
        is_pure=False,
        pack=1,
    )


# fmt: off
@jit
def share_places(
    index: tl.tensor, num_rows: tl.tensor, stride: tl.tensor, lines: tl.tensor, ITEMS: tl.constexpr
) -> tl.tensor:
    """Where line number `index` of the first `lines` lines of each of a weight's rows begins, in its numbers of which
    a line holds ITEMS; past the last one, where that begins."""
    index = tl.minimum(index, num_rows * lines - 1)
    return (index // lines).to(tl.int64) * stride + index % lines * ITEMS


@jit
def ask_for_share(
    weight: tl.tensor, program: tl.tensor, num_programs: tl.tensor, num_rows: tl.tensor, stride: tl.tensor,
    lines: tl.tensor, BLOCK: tl.constexpr,
) -> None:
    """Asks for one of `num_programs` shares of the first `lines` lines of each of a weight's rows."""
    items: tl.constexpr = LINE_BYTES // (weight.dtype.element_ty.primitive_bitwidth // 8)
    for start in range(program * BLOCK, num_rows * lines, num_programs * BLOCK):
        index = start + tl.arange(0, BLOCK)
        prefetch_lines(weight + share_places(index, num_rows, stride, lines, items))


@jit
def ask_when_done(
    weight: tl.tensor, num_rows: tl.tensor, stride: tl.tensor, lines: tl.tensor, PROGRAMS: tl.constexpr
) -> None:
    """Asks for this program's share, where all PROGRAMS of a grid do; 0: for nothing."""
    if PROGRAMS > 0:
        program = tl.program_id(0) * tl.num_programs(1) + tl.program_id(1)
        ask_for_share(weight, program, PROGRAMS, num_rows, stride, lines, 128)
# fmt: on
