"""Gated activations: activation(gate) × up."""

import triton.language as tl

from corymb.kernels.triton_jit import Count, jit
from corymb.kernels.triton_prefetch import ask_for_share


# fmt: off
@jit
def silu(x: tl.tensor) -> tl.tensor:
    """x × sigmoid(x)."""
    return x / (1.0 + tl.exp(-x))


@jit
def gelu_tanh(x: tl.tensor) -> tl.tensor:
    """gelu with its tanh approximation."""
    inner = 0.7978845608028654 * (x + 0.044715 * x * x * x)
    return x * (1.0 - 1.0 / (tl.exp(2.0 * inner) + 1.0))  # (1 + tanh(y)) ÷ 2 = 1 - 1 ÷ (exp(2y) + 1)


@jit
def gate_rows(
    gate_up: tl.tensor, out: tl.tensor, in_stride: tl.tensor, out_stride: tl.tensor,
    ahead: tl.tensor, ahead_rows: "Count", ahead_stride: "Count", ahead_lines: "Count",
    SIZE: tl.constexpr, BLOCK: tl.constexpr, GELU: tl.constexpr, EARLY: tl.constexpr, AHEAD: tl.constexpr,
) -> None:
    """Program (AHEAD + r, b) does block b of row r: gate [0, SIZE), up [SIZE, 2 SIZE). Those before ask for the
    beginning of the weight `ahead`."""
    if AHEAD > 0:  # noqa: SIM102 - without it there is no second condition
        if tl.program_id(0) < AHEAD:
            program = tl.program_id(0) * tl.num_programs(1) + tl.program_id(1)
            asking = AHEAD * tl.num_programs(1)
            ask_for_share(ahead, program, asking, ahead_rows, ahead_stride, ahead_lines, 256)
            return
    if EARLY:
        tl.extra.cuda.gdc_wait()
        tl.extra.cuda.gdc_launch_dependents()
    row = (tl.program_id(0) - AHEAD).to(tl.int64)
    index = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = index < SIZE
    gate = tl.load(gate_up + row * in_stride + index, mask=inside, other=0.0)
    up = tl.load(gate_up + row * in_stride + SIZE + index, mask=inside, other=0.0)
    wide = gate.to(tl.float32)
    activated = gelu_tanh(wide) if GELU else silu(wide)
    # Rounded before the product, as the plain version does it.
    result = activated.to(gate.dtype).to(tl.float32) * up.to(tl.float32)
    tl.store(out + row * out_stride + index, result.to(out.dtype.element_ty), mask=inside)
# fmt: on
