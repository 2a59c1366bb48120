"""Routed experts on a GPU: two grouped products and a weighted sum, nothing of which depends on the host."""

from dataclasses import dataclass

import torch
import triton.language as tl
from torch import Tensor

from corymb.kernels.routing import Gating, Routing
from corymb.kernels.triton_jit import Count, Launch, jit
from corymb.kernels.triton_routing import Pairs, choose, group

SUM_BLOCK = 1024
NARROW = 16  # the smallest side of a product


# fmt: off
@jit
def gate_up_block(
    left: tl.tensor, up: tl.tensor, slope: tl.tensor, lift: tl.tensor, limit: tl.tensor, BOUNDED: tl.constexpr
) -> tl.tensor:
    """See routing.Gating."""
    if BOUNDED:
        left = tl.minimum(left, limit)
        up = tl.minimum(tl.maximum(up, -limit), limit)
    return left / (1.0 + tl.exp(-slope * left)) * (up + lift)


@jit
def add_rows(
    value: tl.tensor, place: tl.tensor, total: tl.tensor, wanted: tl.tensor, WHOLE: tl.constexpr, WIDEN: tl.constexpr
) -> tl.tensor:
    """Adds value @ weight.T of one block of a weight's rows."""
    block = tl.load(place) if WHOLE else tl.load(place, mask=wanted, other=0.0)
    if WIDEN:
        return total + tl.dot(value.to(tl.float32), tl.trans(block.to(tl.float32)))
    return tl.dot(value, tl.trans(block), total, input_precision="ieee")


@jit
def multiply_pairs(
    x: tl.tensor, weight: tl.tensor, bias: tl.tensor, out: tl.tensor,
    order: tl.tensor, experts: tl.tensor, num_blocks: tl.tensor, num_pairs: "Count",
    x_stride: tl.tensor, out_stride: tl.tensor, slope: tl.tensor, lift: tl.tensor, limit: tl.tensor,
    N: tl.constexpr, K: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
    TOP_K: tl.constexpr, GATE: tl.constexpr, BOUNDED: tl.constexpr, BIAS: tl.constexpr, STAGES: tl.constexpr,
    WIDEN: tl.constexpr, EARLY: tl.constexpr,
) -> None:
    """Program (n, b) computes outputs [n × BLOCK_N, …) of block b's pairs; pair p's input is row p ÷ TOP_K of x.

    With GATE an expert's weight holds N gates, then N ups.
    """
    if EARLY:
        tl.extra.cuda.gdc_wait()
        tl.extra.cuda.gdc_launch_dependents()
    block = tl.program_id(1)
    if block >= tl.load(num_blocks):
        return
    expert = tl.load(experts + block).to(tl.int64)
    pair = tl.load(order + block * BLOCK_M + tl.arange(0, BLOCK_M))
    real = pair < num_pairs
    column = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    inside = column < N
    inner = tl.arange(0, BLOCK_K)
    rows: tl.constexpr = 2 * N if GATE else N
    x_place = x + (pair // TOP_K).to(tl.int64)[:, None] * x_stride + inner[None, :]
    w_place = weight + (expert * rows + column)[:, None] * K + inner[None, :]
    whole: tl.constexpr = (N % BLOCK_N == 0) & (K % BLOCK_K == 0)
    total = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
    up_total = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
    for start in tl.range(0, K, BLOCK_K, num_stages=STAGES):
        left = (start + inner < K)[None, :]
        value = tl.load(x_place + start, mask=real[:, None] & left, other=0.0)
        wanted = inside[:, None] & left
        total = add_rows(value, w_place + start, total, wanted, whole, WIDEN)
        if GATE:
            up_total = add_rows(value, w_place + start + N * K, up_total, wanted, whole, WIDEN)
    if BIAS:
        line = bias + expert * rows + column
        total += tl.load(line, mask=inside, other=0.0).to(tl.float32)[None, :]
        if GATE:
            up_total += tl.load(line + N, mask=inside, other=0.0).to(tl.float32)[None, :]
    if GATE:
        total = gate_up_block(total, up_total, slope, lift, limit, BOUNDED)
    place = out + pair.to(tl.int64)[:, None] * out_stride + column[None, :]
    tl.store(place, total.to(out.dtype.element_ty), mask=real[:, None] & inside[None, :])


@jit
def weigh_pairs(
    parts: tl.tensor, weights: tl.tensor, out: tl.tensor,
    SIZE: tl.constexpr, TOP_K: tl.constexpr, BLOCK: tl.constexpr, EARLY: tl.constexpr,
) -> None:
    """Program (t, b) sums block b of token t's parts, in the order of its choices."""
    if EARLY:
        tl.extra.cuda.gdc_wait()
        tl.extra.cuda.gdc_launch_dependents()
    token = tl.program_id(0).to(tl.int64)
    index = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = index < SIZE
    total = tl.zeros([BLOCK], tl.float32)
    for choice in tl.static_range(TOP_K):
        pair = token * TOP_K + choice
        part = tl.load(parts + pair * SIZE + index, mask=inside, other=0.0).to(tl.float32)
        total += part * tl.load(weights + pair)
    tl.store(out + token * SIZE + index, total.to(out.dtype.element_ty), mask=inside)
# fmt: on


@dataclass(frozen=True, slots=True)
class Stacked:
    """All experts' weights: gates above ups [E, 2 × n, H], downs [E, H, n], and their biases."""

    gate_up: Tensor
    down: Tensor
    gate_up_bias: Tensor | None = None
    down_bias: Tensor | None = None


@dataclass(frozen=True, slots=True)
class ExpertTile:
    """One variant of the grouped product."""

    block_m: int
    block_n: int
    block_k: int
    num_warps: int
    num_stages: int


def choose_tile(num_pairs: int, num_experts: int, *, invariant: bool = False) -> ExpertTile:
    """Few pairs an expert are bound by reading its weights, many by products. `invariant`: one tile for all numbers of
    pairs, so that a pair's sums have one order in every batch."""
    average = num_pairs / num_experts
    if not invariant and average <= 8:
        return ExpertTile(NARROW, 64, 128, num_warps=4, num_stages=4)
    if invariant or average <= 64:
        return ExpertTile(64, 64, 64, num_warps=4, num_stages=4)
    return ExpertTile(128, 128, 64, num_warps=8, num_stages=3)


def mix(
    x: Tensor,
    logits: Tensor,
    routing: Routing,
    gating: Gating,
    correction: Tensor | None,
    experts: Stacked,
    *,
    launch: Launch,
    invariant: bool = False,
) -> Tensor:
    """Returns [T, H]: what the experts that the router's logits [T, E] choose make of x [T, H]."""
    ids, weights = choose(logits, routing, correction, launch=launch)
    tile = choose_tile(ids.numel(), routing.num_experts, invariant=invariant)
    pairs = group(ids, routing.num_experts, tile.block_m, launch=launch)
    top_k = routing.top_k
    inner = _multiply(x, experts.gate_up, experts.gate_up_bias, pairs, tile, top_k=top_k, gating=gating, launch=launch)
    parts = _multiply(inner, experts.down, experts.down_bias, pairs, tile, top_k=1, gating=None, launch=launch)
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    size = x.shape[1]
    weigh_pairs[(len(x), -(-size // SUM_BLOCK))](
        parts, weights, out, SIZE=size, TOP_K=top_k, BLOCK=SUM_BLOCK, EARLY=launch.early, **launch.options(num_warps=4)
    )
    return out


def _multiply(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    pairs: Pairs,
    tile: ExpertTile,
    *,
    top_k: int,
    gating: Gating | None,
    launch: Launch,
) -> Tensor:
    """One grouped product, [pairs, N]: gated if there is a gating."""
    _, num_outputs, num_inputs = weight.shape
    num_outputs //= 2 if gating else 1
    block_n = _block_n(num_outputs, pairs, tile, launch.num_sms)
    block_k = tile.block_k * 2 // x.element_size()  # so many bytes, whatever the type
    while num_inputs % block_k and block_k > 16:
        block_k //= 2
    out = torch.empty((pairs.num_pairs, num_outputs), dtype=x.dtype, device=x.device)
    multiply_pairs[(-(-num_outputs // block_n), pairs.most_blocks)](
        x,
        weight,
        weight if bias is None else bias,
        out,
        pairs.order,
        pairs.experts,
        pairs.total,
        pairs.num_pairs,
        x.stride(0),
        out.stride(0),
        1.0 if gating is None else gating.slope,
        0.0 if gating is None else gating.lift,
        (gating and gating.limit) or 0.0,
        N=num_outputs,
        K=num_inputs,
        BLOCK_M=tile.block_m,
        BLOCK_N=block_n,
        BLOCK_K=block_k,
        TOP_K=top_k,
        GATE=gating is not None,
        BOUNDED=gating is not None and gating.limit is not None,
        BIAS=bias is not None,
        STAGES=tile.num_stages,
        WIDEN=launch.interpreted,
        EARLY=launch.early,
        **launch.options(tile.num_warps, tile.num_stages),
    )
    return out


def _block_n(num_outputs: int, pairs: Pairs, tile: ExpertTile, num_sms: int) -> int:
    """Outputs of a block: fewer where few pairs of narrow experts would leave multiprocessors without any."""
    block_n = tile.block_n
    if tile.block_m == NARROW:
        while block_n > NARROW and -(-num_outputs // block_n) * pairs.most_blocks < num_sms:
            block_n //= 2
    return block_n
