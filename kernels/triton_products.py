"""Which products of few rows are ours, and how large their blocks are: pure functions of a product's size.

Measured on an H200 against cuBLAS, alone and inside a step: `benchmarks/gpu_linear.py`, `benchmarks/gpu_decode.py`.
"""

from dataclasses import dataclass

from torch import Tensor

MOST_ROWS = 128
INVARIANT_ROWS = 64  # of a tile, whatever the step's rows
SMALL_INPUTS = 2048  # a model's products are all ours up to here: its steps are bound by launches
MOST_INPUTS = 4096  # with more, ours would have to split them among programs
SQUARE_OUTPUTS = 4096
MANY_GATES = 14336  # with fewer, blocks of more than a few rows leave a quarter of the multiprocessors idle
LEAST_INPUTS = 16  # of a block: a matrix product takes no fewer
FEW_ROWS, SOME_ROWS, MANY_ROWS = 16, 32, 64  # each the most rows of a tile


@dataclass(frozen=True, slots=True)
class Shape:
    """One variant of the kernel."""

    block_n: int
    block_k: int
    num_warps: int
    num_stages: int


@dataclass(frozen=True, slots=True)
class Size:
    """One product: x [num_rows, num_inputs] with a weight [num_outputs, num_inputs]."""

    num_rows: int
    num_outputs: int
    num_inputs: int


def fits(weight: Tensor, num_rows: int) -> bool:
    """Whether our kernel takes it at all."""
    return num_rows <= MOST_ROWS and weight.shape[1] % 16 == 0 and weight.is_contiguous()


def wins(size: Size) -> bool:
    """Whether our kernel is the faster one, with nothing but an addition fused in."""
    if _is_small(size):
        return True
    if not SMALL_INPUTS < size.num_inputs <= MOST_INPUTS or size.num_outputs > 2 * SQUARE_OUTPUTS:
        return False
    if size.num_outputs > SQUARE_OUTPUTS:
        return size.num_rows <= FEW_ROWS  # as fast as cuBLAS alone, and its start overlaps the norm before it
    # cuBLAS splits few rows and needs a second launch; between those and many its tiles fit better than ours.
    return size.num_rows <= FEW_ROWS or SOME_ROWS < size.num_rows <= MANY_ROWS


def fuses_norm(size: Size) -> bool:
    """Whether x should be normed in the kernel, by every program anew."""
    return _is_small(size)


def fuses_gate(size: Size) -> bool:
    """Whether the weight's first half should gate its second in the kernel."""
    fills_tile = size.num_rows <= MANY_ROWS or size.num_rows > 3 * MOST_ROWS // 4
    fills_device = size.num_rows <= FEW_ROWS or size.num_outputs >= 2 * MANY_GATES
    return _is_small(size) or (SMALL_INPUTS < size.num_inputs <= MOST_INPUTS and fills_tile and fills_device)


def _is_small(size: Size) -> bool:
    return size.num_inputs <= SMALL_INPUTS and size.num_rows <= SOME_ROWS


def choose_shape(size: Size, *, gated: bool) -> Shape:
    """Blocks so narrow that every multiprocessor has one, of 8 to 16 KiB, four of them on their way."""
    if size.num_inputs == MOST_INPUTS:
        if gated and size.num_rows <= FEW_ROWS and size.num_outputs < MANY_GATES:
            return Shape(64, 128, num_warps=2, num_stages=3)
        if gated:
            return Shape(64 if SOME_ROWS < size.num_rows <= MANY_ROWS else 128, 64, num_warps=8, num_stages=4)
        if size.num_outputs <= SQUARE_OUTPUTS:
            return _square_shape(size.num_rows)
        if size.num_outputs <= 2 * SQUARE_OUTPUTS and size.num_rows <= FEW_ROWS:
            return Shape(64, 128, num_warps=4, num_stages=6)
    block_n = 16 if size.num_outputs <= SQUARE_OUTPUTS and size.num_rows < MANY_ROWS else 32
    block_k = 256 if size.num_rows <= FEW_ROWS else 128
    while size.num_inputs % block_k and block_k > LEAST_INPUTS:
        block_k //= 2
    return Shape(block_n, block_k, num_warps=2 if block_n == 16 else 4, num_stages=4 if gated else 5)


def _square_shape(num_rows: int) -> Shape:
    if num_rows <= SOME_ROWS:
        return Shape(32, 256 if num_rows <= FEW_ROWS else 128, num_warps=4, num_stages=6)
    return Shape(32, 128, num_warps=8, num_stages=6 if num_rows <= MANY_ROWS else 5)
