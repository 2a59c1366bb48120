"""Products of few rows with a weight, bound by reading the weight once: norm before, gate or addition after, fused."""

import torch
import triton.language as tl
from torch import Tensor

from corymb.kernels.operations import Activation, Norm
from corymb.kernels.triton_activations import gelu_tanh, silu
from corymb.kernels.triton_ahead import Ahead, nothing_ahead
from corymb.kernels.triton_jit import Count, Launch, jit, next_power_of_2
from corymb.kernels.triton_prefetch import LINE_BYTES, ask_when_done, prefetch_lines
from corymb.kernels.triton_products import INVARIANT_ROWS, Shape, Size, choose_shape


# fmt: off
@jit
def prefetch(
    weight: tl.tensor, output: tl.tensor, K: tl.constexpr, BLOCK_N: tl.constexpr, BYTES: tl.constexpr,
    ITEM_BYTES: tl.constexpr,
) -> None:
    """Asks for the first bytes of BLOCK_N weight rows while the kernel before this one still runs."""
    line = tl.arange(0, BYTES // LINE_BYTES)
    row = output + tl.arange(0, BLOCK_N)
    prefetch_lines(weight + row.to(tl.int64)[:, None] * K + line[None, :] * (LINE_BYTES // ITEM_BYTES))


@jit
def multiply_rows(
    x: tl.tensor, weight: tl.tensor, norm_weight: tl.tensor, bias: tl.tensor, out: tl.tensor,
    num_rows: "Count", x_stride: tl.tensor, out_stride: tl.tensor, eps: tl.tensor,
    ahead: tl.tensor, ahead_rows: "Count", ahead_stride: "Count", ahead_lines: "Count",
    N: tl.constexpr, K: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
    NORM: tl.constexpr, GATE: tl.constexpr, ADD: tl.constexpr, BIAS: tl.constexpr, STAGES: tl.constexpr,
    WIDEN: tl.constexpr, EARLY: tl.constexpr, PREFETCH: tl.constexpr, AHEAD: tl.constexpr,
) -> None:
    """Program (n, m) computes outputs [n × BLOCK_N, …) of rows [m × BLOCK_M, …).

    NORM: x is normed first. GATE 1 or 2 (silu, gelu): the weight holds N gates, then N ups. ADD: added to `out`. AHEAD:
    when a program has read its part, it asks for a share of the beginning of the weight `ahead`.
    """
    output = tl.program_id(0) * BLOCK_N
    if PREFETCH > 0:
        prefetch(weight, output, K, BLOCK_N, PREFETCH, weight.dtype.element_ty.primitive_bitwidth // 8)
    if EARLY:
        tl.extra.cuda.gdc_wait()
        tl.extra.cuda.gdc_launch_dependents()
    row = tl.program_id(1) * BLOCK_M + tl.arange(0, BLOCK_M)
    real = (row < num_rows)[:, None]
    column = output + tl.arange(0, BLOCK_N)
    inner = tl.arange(0, BLOCK_K)
    x_place = x + row.to(tl.int64)[:, None] * x_stride + inner[None, :]
    w_place = weight + column.to(tl.int64)[:, None] * K + inner[None, :]
    whole: tl.constexpr = N % BLOCK_N == 0 and K % BLOCK_K == 0
    wanted = real & (column < N)[None, :]
    place = out + row.to(tl.int64)[:, None] * out_stride + column[None, :]
    if ADD:
        before = tl.load(place, mask=wanted, other=0.0).to(tl.float32)  # on its way while the weight is read
    total = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
    up_total = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
    squares = tl.zeros([BLOCK_M], tl.float32)
    for start in tl.range(0, K, BLOCK_K, num_stages=STAGES):
        here = inner < K - start
        value = tl.load(x_place + start, mask=real & here[None, :] if K % BLOCK_K else real, other=0.0)
        if NORM:
            wide = value.to(tl.float32)
            squares += tl.sum(wide * wide, 1)
            value = (wide * tl.load(norm_weight + start + inner, mask=here, other=0.0)[None, :]).to(value.dtype)
        present = (column < N)[:, None] & here[None, :]
        total = add_product(value, w_place + start, total, present, whole, WIDEN)
        if GATE > 0:
            up_total = add_product(value, w_place + start + N * K, up_total, present, whole, WIDEN)
    ask_when_done(ahead, ahead_rows, ahead_stride, ahead_lines, AHEAD)
    if NORM:
        inverse = (1.0 / tl.sqrt(squares / K + eps))[:, None]
        total *= inverse
        up_total *= inverse
    if BIAS:
        total += tl.load(bias + column, mask=column < N, other=0.0)[None, :]
        if GATE > 0:
            up_total += tl.load(bias + N + column, mask=column < N, other=0.0)[None, :]
    kind: tl.constexpr = out.dtype.element_ty
    if GATE > 0:
        gate = total.to(kind).to(tl.float32)
        activated = silu(gate) if GATE == 1 else gelu_tanh(gate)
        total = activated.to(kind).to(tl.float32) * up_total.to(kind).to(tl.float32)
    if ADD:
        total = total.to(kind).to(tl.float32) + before
    tl.store(place, total.to(kind), mask=wanted)


@jit
def add_product(
    value: tl.tensor, w_place: tl.tensor, total: tl.tensor, present: tl.tensor,
    WHOLE: tl.constexpr, WIDEN: tl.constexpr,
) -> tl.tensor:
    """Adds value @ weight.T of one block. WHOLE: all of the block is present."""
    block = tl.load(w_place) if WHOLE else tl.load(w_place, mask=present, other=0.0)
    if WIDEN:
        return total + tl.dot(value.to(tl.float32), tl.trans(block.to(tl.float32)))
    return tl.dot(value, tl.trans(block), total, input_precision="ieee")
# fmt: on


def multiply(
    x: Tensor,
    weight: Tensor,
    *,
    launch: Launch,
    bias: Tensor | None = None,
    norm: Norm | None = None,
    gate: Activation | None = None,
    add_to: Tensor | None = None,
    shape: Shape | None = None,
    invariant: bool = False,
    ahead: Ahead | None = None,
) -> Tensor:
    """Returns x @ weight.T of x [M, K] and weight [N, K]. M is at most `triton_products.MOST_ROWS`, unless `invariant`:
    then all rows are computed in tiles of one size, whatever M.

    With `norm`, x is normed first; with `gate` ("silu", "gelu_tanh") the weight's first half gates its second; with
    `add_to` [M, N] the product is added to it in place, and it is returned. `ahead`: see there.
    """
    num_rows, num_inputs = x.shape
    num_outputs = weight.shape[0] // (2 if gate else 1)
    block_m = INVARIANT_ROWS if invariant else max(16, next_power_of_2(num_rows))
    shape = shape or choose_shape(Size(block_m, num_outputs, num_inputs), gated=gate is not None)
    num_stages = max(2, shape.num_stages * 2 // weight.element_size())  # wide numbers take the memory of two
    out = add_to if add_to is not None else torch.empty((num_rows, num_outputs), dtype=x.dtype, device=x.device)
    grid = (-(-num_outputs // shape.block_n), -(-num_rows // block_m))
    multiply_rows[grid](
        x,
        weight,
        weight if norm is None else norm.weight,
        weight if bias is None else bias,
        out,
        num_rows,
        x.stride(0),
        out.stride(0),
        0.0 if norm is None else norm.eps,
        **(ahead or nothing_ahead()).arguments(x, grid[0] * grid[1]),
        N=num_outputs,
        K=num_inputs,
        BLOCK_M=block_m,
        BLOCK_N=shape.block_n,
        BLOCK_K=shape.block_k,
        NORM=norm is not None,
        GATE={None: 0, "silu": 1, "gelu_tanh": 2}[gate],
        ADD=add_to is not None,
        BIAS=bias is not None,
        STAGES=num_stages,
        WIDEN=launch.interpreted,
        EARLY=launch.early,
        # Only whole blocks, or it would ask for lines past the weight's end.
        PREFETCH=1024 if launch.early and num_outputs % shape.block_n == 0 and num_inputs >= 512 else 0,
        **launch.options(shape.num_warps, num_stages),
    )
    return out
