"""Gated activations: activation(gate) × up."""

import triton.language as tl

from corymb.kernels.triton_jit import jit


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
    SIZE: tl.constexpr, BLOCK: tl.constexpr, GELU: tl.constexpr, EARLY: tl.constexpr,
) -> None:
    """Program (r, b) does block b of row r: gate [0, SIZE), up [SIZE, 2 SIZE)."""
    if EARLY:
        tl.extra.cuda.gdc_wait()
        tl.extra.cuda.gdc_launch_dependents()
    row = tl.program_id(0).to(tl.int64)
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
