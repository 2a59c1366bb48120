"""Which products of few rows are ours, and how large their blocks are: pure functions of a product's size.

Measured on an H200 against cuBLAS, alone and inside a step: `benchmarks/gpu_linear.py`, `benchmarks/gpu_decode.py`.
"""

from dataclasses import dataclass

from torch import Tensor

MOST_ROWS = 64
SMALL_INPUTS = 2048  # norming x again in every program costs more than its own launch from here on
SQUARE_ROWS = 16  # of 4096 × 4096: cuBLAS splits it and needs a second launch, ours takes the addition in
WIDE_ROWS = 16  # of 6144 × 4096: as fast as cuBLAS alone, and its start overlaps the norm before it
GATED_ROWS = 0  # of gates and ups of many inputs: both are bound by memory


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
    if size.num_inputs <= SMALL_INPUTS:
        return True
    if size.num_inputs > 4096:
        return False
    return size.num_rows <= (SQUARE_ROWS if size.num_outputs <= 4096 else WIDE_ROWS if size.num_outputs <= 8192 else 0)


def fuses_norm(size: Size) -> bool:
    """Whether x should be normed in the kernel, by every program anew."""
    return size.num_inputs <= SMALL_INPUTS


def fuses_gate(size: Size) -> bool:
    """Whether the weight's first half should gate its second in the kernel."""
    return size.num_inputs <= SMALL_INPUTS or (size.num_rows <= GATED_ROWS and size.num_inputs <= 4096)


def choose_shape(size: Size, *, gated: bool) -> Shape:
    """Blocks so narrow that every multiprocessor has one, of 8 to 16 KiB, four of them on their way."""
    if size.num_inputs == 4096:
        if gated:
            return Shape(16, 128, num_warps=2, num_stages=6)
        if size.num_outputs <= 4096 and size.num_rows <= 32:
            return Shape(32, 256 if size.num_rows <= 16 else 128, num_warps=4, num_stages=6)
        if size.num_outputs <= 8192 and size.num_rows <= 16:
            return Shape(64, 128, num_warps=4, num_stages=6)
    block_n = 16 if size.num_outputs <= 4096 and size.num_rows < MOST_ROWS else 32
    block_k = 256 if size.num_rows <= 16 else 128
    while size.num_inputs % block_k:
        block_k //= 2
    return Shape(block_n, block_k, num_warps=2 if block_n == 16 else 4, num_stages=4 if gated else 5)
