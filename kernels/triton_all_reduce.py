"""Sums over GPUs that reach into each other's memory, with the residual's addition and the norm in the same pass."""

import torch
import triton.language as tl
from torch import Tensor

from corymb.kernels.operations import Norm
from corymb.kernels.triton_jit import Count, Launch, jit, next_power_of_2

ALIGNMENT = tl.constexpr(16)  # bytes, of buffers
MOST_PICKED_ROWS = 1024
PICKED_BLOCK = 128


# fmt: off
@jit
def meet(signals: tl.tensor, slot: tl.tensor, RANK: tl.constexpr, RANKS: tl.constexpr) -> None:
    """Waits until every rank's program of this slot is here; what they stored before is seen after.

    A slot's flags on a rank are one for each rank: how many meetings that one has come to. They are never cleared. Only
    differences count, so they may run over. Nobody can be two meetings ahead.
    """
    own = tl.load(signals + RANK).to(tl.pointer_type(tl.int32)) + slot * RANKS
    meeting = tl.load(own + RANK, cache_modifier=".cg") + 1  # only this program counts its own
    tl.debug_barrier()
    tl.store(own + RANK, meeting)
    for step in tl.static_range(1, RANKS):
        theirs = tl.load(signals + (RANK + step) % RANKS).to(tl.pointer_type(tl.int32)) + slot * RANKS
        tl.atomic_xchg(theirs + RANK, meeting, sem="release", scope="sys")
    for step in tl.static_range(1, RANKS):
        while tl.atomic_add(own + (RANK + step) % RANKS, 0, sem="acquire", scope="sys") - meeting < 0:
            pass
    tl.debug_barrier()


@jit
def sum_rows(
    x: tl.tensor, residual: tl.tensor, weight: tl.tensor, out: tl.tensor, buffers: tl.tensor, signals: tl.tensor,
    num_rows: "Count", x_stride: tl.tensor, residual_stride: tl.tensor, eps: tl.tensor,
    WIDTH: tl.constexpr, BLOCK: tl.constexpr, RANK: tl.constexpr, RANKS: tl.constexpr, PUSHED: tl.constexpr,
    NORM: tl.constexpr, EARLY: tl.constexpr,
) -> None:
    """Program p sums rows p, p + programs, … over the ranks, in their order. With NORM, the sum is added to the
    residual's row, which keeps it, and the norm of that is what comes out. All programs must run at once: each waits
    for its like on the other ranks.

    PUSHED 0: a rank writes to its own buffer, and all read it there. Else a rank writes to all buffers, which have room
    for PUSHED rows of each rank, and reads its own: that is one way over the link, not there and back.
    """
    program, stride = tl.program_id(0), tl.num_programs(0)
    index = tl.arange(0, BLOCK)
    inside = index < WIDTH
    if NORM:
        scale = tl.load(weight + index, mask=inside, other=0.0)  # does not depend on the kernel before
    if EARLY:
        tl.extra.cuda.gdc_wait()
        tl.extra.cuda.gdc_launch_dependents()
    kind: tl.constexpr = x.dtype.element_ty
    row = program.to(tl.int64)
    while row < num_rows:
        value = tl.load(x + row * x_stride + index, mask=inside, other=0.0)
        for step in tl.static_range(RANKS if PUSHED > 0 else 1):
            held = tl.multiple_of(tl.load(buffers + (RANK + step) % RANKS).to(tl.pointer_type(kind)), ALIGNMENT)
            tl.store(held + (RANK * PUSHED + row) * WIDTH + index, value, mask=inside)
        row += stride
    meet(signals, program, RANK, RANKS)
    row = program.to(tl.int64)
    while row < num_rows:
        total = tl.zeros([BLOCK], tl.float32)
        for peer in tl.static_range(RANKS):
            held = tl.load(buffers + (RANK if PUSHED > 0 else peer)).to(tl.pointer_type(kind))
            part = tl.multiple_of(held, ALIGNMENT) + (peer * PUSHED + row) * WIDTH + index
            # Not by way of the first-level cache, which may hold what lay there before.
            total += tl.load(part, mask=inside, other=0.0, cache_modifier=".cg").to(tl.float32)
        value = total.to(kind)
        if NORM:
            place = residual + row * residual_stride + index
            value = (tl.load(place, mask=inside, other=0.0).to(tl.float32) + value.to(tl.float32)).to(kind)
            tl.store(place, value, mask=inside)
            wide = value.to(tl.float32)
            value = (wide * (1.0 / tl.sqrt(tl.sum(wide * wide, 0) / WIDTH + eps)) * scale).to(kind)
        tl.store(out + row * WIDTH + index, value, mask=inside)
        row += stride


@jit
def pick_rows(
    scores: tl.tensor, own_ids: tl.tensor, own_usable: tl.tensor, token_ids: tl.tensor, usable: tl.tensor,
    buffers: tl.tensor, signals: tl.tensor, num_rows: "Count", stride: tl.tensor, first: "Count",
    MOST: tl.constexpr, BLOCK: tl.constexpr, RANK: tl.constexpr, RANKS: tl.constexpr, EARLY: tl.constexpr,
) -> None:
    """Program p picks the best of the ranks' choices for its BLOCK rows. A buffer holds MOST scores, as bits, and MOST
    tokens; a score that is not usable is NaN and wins."""
    if EARLY:
        tl.extra.cuda.gdc_wait()
        tl.extra.cuda.gdc_launch_dependents()
    row = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    real = row < num_rows
    chosen = tl.load(own_ids + row, mask=real, other=0)
    fine = tl.load(own_usable + row, mask=real, other=0).to(tl.int1)
    score = tl.load(scores + row.to(tl.int64) * stride + chosen, mask=real, other=0.0).to(tl.float32)
    score = tl.where(fine, score, float("nan"))
    own = tl.load(buffers + RANK).to(tl.pointer_type(tl.int32))
    tl.store(own + row, score.to(tl.int32, bitcast=True), mask=real)
    tl.store(own + MOST + row, (chosen + first).to(tl.int32), mask=real)
    meet(signals, tl.program_id(0), RANK, RANKS)
    best = tl.full([BLOCK], float("-inf"), tl.float32)
    token = tl.zeros([BLOCK], tl.int32)
    sound = tl.full([BLOCK], 1, tl.int1)
    for peer in tl.static_range(RANKS):
        place = tl.load(buffers + peer).to(tl.pointer_type(tl.int32)) + row
        theirs = tl.load(place, mask=real, other=0, cache_modifier=".cg").to(tl.float32, bitcast=True)
        their_token = tl.load(place + MOST, mask=real, other=0, cache_modifier=".cg")
        better = (theirs > best) | (peer == 0)
        sound = sound & (theirs == theirs)  # noqa: PLR0124 - NaN is not
        token = tl.where(better, their_token, token)
        best = tl.where(better, theirs, best)
    tl.store(token_ids + row, token.to(tl.int64), mask=real)
    tl.store(usable + row, sound, mask=real)
# fmt: on


class PickRows:
    """One of several ranks that agree on the best token of every row; see SumRows."""

    def __init__(self, signals: Tensor, launch: Launch, *, rank: int, size: int) -> None:
        """`signals`: as for SumRows, which may use the same."""
        self._signals = signals
        self._launch = launch
        self._rank = rank
        self._size = size

    def __call__(
        self, scores: Tensor, own_ids: Tensor, own_usable: Tensor, first: int, buffers: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Returns the tokens, int64 [N], and whether they are usable, bool [N]: N at most MOST_PICKED_ROWS.

        This rank's scores [N, V] begin with token `first`'s. `buffers`: int64 [size], where the ranks' buffers of
        2 × MOST_PICKED_ROWS int32 lie.
        """
        token_ids, usable = torch.empty_like(own_ids), torch.empty_like(own_usable)
        pick_rows[(-(-len(scores) // PICKED_BLOCK),)](
            scores,
            own_ids,
            own_usable,
            token_ids,
            usable,
            buffers,
            self._signals,
            len(scores),
            scores.stride(0),
            first,
            MOST=MOST_PICKED_ROWS,
            BLOCK=PICKED_BLOCK,
            RANK=self._rank,
            RANKS=self._size,
            EARLY=self._launch.early,
            **self._launch.options(num_warps=4),
        )
        return token_ids, usable


class SumRows:
    """One of several ranks that sum rows through shared memory.

    No rank may be written to while another still reads: two calls in a row must use different buffers, and then the
    meeting of the second tells that everybody is done with the first.
    """

    def __init__(self, signals: Tensor, launch: Launch, *, rank: int, size: int, pushed: int = 0) -> None:
        """`signals`: int64 [size], where the ranks' flags lie, at first zero: `num_flags` int32 each. `pushed`: ranks
        write to each other's buffers, at most so many rows; 0: they read from them."""
        self._pushed = pushed
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

        `buffers`: int64 [size], where the ranks' buffers lie: of N × width numbers or, where they are written to by
        others, of size × `pushed` × width.
        """
        num_rows, width = x.shape
        assert not self._pushed or num_rows <= self._pushed, num_rows
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
            PUSHED=self._pushed,
            NORM=norm is not None,
            EARLY=self._launch.early,
            **self._launch.options(num_warps=8 if width > 1024 else 4),
        )
        return out
