"""Sums over GPUs that reach into each other's memory, with the residual's addition and the norm in the same pass."""

import torch
import triton.language as tl
from torch import Tensor

from corymb.kernels.operations import Norm
from corymb.kernels.triton_jit import Count, Launch, jit, next_power_of_2

ALIGNMENT = tl.constexpr(16)  # bytes, of buffers


# fmt: off
@jit
def meet(signals: tl.tensor, slot: tl.tensor, RANK: tl.constexpr, RANKS: tl.constexpr) -> None:
    """Waits until every rank's program of this slot is here; what they stored before is seen after.

    Each rank has a flag a slot for each other rank, which that one raises and only its owner lowers: so flags need no
    clearing between launches, and nobody can be two meetings ahead.
    """
    tl.debug_barrier()
    for step in tl.static_range(1, RANKS):
        flag = tl.load(signals + (RANK + step) % RANKS).to(tl.pointer_type(tl.int32)) + slot * RANKS + RANK
        while tl.atomic_cas(flag, 0, 1, sem="release", scope="sys") != 0:
            pass
    own = tl.load(signals + RANK).to(tl.pointer_type(tl.int32)) + slot * RANKS
    for step in tl.static_range(1, RANKS):
        while tl.atomic_cas(own + (RANK + step) % RANKS, 1, 0, sem="acquire", scope="sys") != 1:
            pass
    tl.debug_barrier()


@jit
def sum_rows(
    x: tl.tensor, residual: tl.tensor, weight: tl.tensor, out: tl.tensor, buffers: tl.tensor, signals: tl.tensor,
    num_rows: "Count", x_stride: tl.tensor, residual_stride: tl.tensor, eps: tl.tensor,
    WIDTH: tl.constexpr, BLOCK: tl.constexpr, RANK: tl.constexpr, RANKS: tl.constexpr, NORM: tl.constexpr,
    EARLY: tl.constexpr,
) -> None:
    """Program p sums rows p, p + programs, … over the ranks, in their order. With NORM, the sum is added to the
    residual's row, which keeps it, and the norm of that is what comes out. All programs must run at once: each waits
    for its like on the other ranks."""
    program, stride = tl.program_id(0), tl.num_programs(0)
    index = tl.arange(0, BLOCK)
    inside = index < WIDTH
    if NORM:
        scale = tl.load(weight + index, mask=inside, other=0.0)  # does not depend on the kernel before
    if EARLY:
        tl.extra.cuda.gdc_wait()
        tl.extra.cuda.gdc_launch_dependents()
    kind: tl.constexpr = x.dtype.element_ty
    own = tl.multiple_of(tl.load(buffers + RANK).to(tl.pointer_type(kind)), ALIGNMENT)
    row = program.to(tl.int64)
    while row < num_rows:
        tl.store(own + row * WIDTH + index, tl.load(x + row * x_stride + index, mask=inside, other=0.0), mask=inside)
        row += stride
    meet(signals, program, RANK, RANKS)
    row = program.to(tl.int64)
    while row < num_rows:
        total = tl.zeros([BLOCK], tl.float32)
        for peer in tl.static_range(RANKS):
            part = tl.multiple_of(tl.load(buffers + peer).to(tl.pointer_type(kind)), ALIGNMENT)
            # Not by way of the first-level cache, which may hold what lay there before.
            value = tl.load(part + row * WIDTH + index, mask=inside, other=0.0, cache_modifier=".cg")
            total += value.to(tl.float32)
        value = total.to(kind)
        if NORM:
            place = residual + row * residual_stride + index
            value = (tl.load(place, mask=inside, other=0.0).to(tl.float32) + value.to(tl.float32)).to(kind)
            tl.store(place, value, mask=inside)
            wide = value.to(tl.float32)
            value = (wide * (1.0 / tl.sqrt(tl.sum(wide * wide, 0) / WIDTH + eps)) * scale).to(kind)
        tl.store(out + row * WIDTH + index, value, mask=inside)
        row += stride
# fmt: on


class SumRows:
    """One of several ranks that sum rows through shared memory.

    No rank may be written to while another still reads: two calls in a row must use different buffers, and then the
    meeting of the second tells that everybody is done with the first.
    """

    def __init__(self, signals: Tensor, launch: Launch, *, rank: int, size: int) -> None:
        """`signals`: int64 [size], where the ranks' flags lie, at first zero: `num_flags` int32 each."""
        self._signals = signals
        self._launch = launch
        self._rank = rank
        self._size = size

    @staticmethod
    def num_flags(launch: Launch, size: int) -> int:
        """Of each rank."""
        return launch.num_sms * size

    def __call__(
        self, x: Tensor, buffers: Tensor, *, residual: Tensor | None = None, norm: Norm | None = None
    ) -> Tensor:
        """Returns the sum of x [N, width] over the ranks; with a norm, that of the sum added to residual in place.

        `buffers`: int64 [size], where the ranks' buffers of N × width numbers lie.
        """
        num_rows, width = x.shape
        out = torch.empty((num_rows, width), dtype=x.dtype, device=x.device)
        sum_rows[(min(num_rows, self._launch.num_sms),)](
            x,
            x if residual is None else residual,
            x if norm is None else norm.weight,
            out,
            buffers,
            self._signals,
            num_rows,
            x.stride(0),
            0 if residual is None else residual.stride(0),
            0.0 if norm is None else norm.eps,
            WIDTH=width,
            BLOCK=next_power_of_2(width),
            RANK=self._rank,
            RANKS=self._size,
            NORM=norm is not None,
            EARLY=self._launch.early,
            **self._launch.options(num_warps=8 if width > 1024 else 4),
        )
        return out
