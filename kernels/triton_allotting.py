"""Finds the likeliest drafts of all rows in one launch: a search over the values for the last one taken."""

import torch
import triton.language as tl
from torch import Tensor

from corymb.kernels.triton_jit import Count, Launch, jit, next_power_of_2

INFINITE = tl.constexpr(0x7F800000)  # bits of an infinite float32; positive numbers stand in the order of their bits


# fmt: off
@jit
def allot_rows(
    survivals: tl.tensor, most: tl.tensor, windows: tl.tensor, least: tl.tensor,
    num_rows: "Count", budget: "Count",
    NUM_DRAFTS: tl.constexpr, PLACES: tl.constexpr, ROWS: tl.constexpr,
) -> None:
    """One program, over [PLACES, ROWS] drafts: what comes first in memory comes first among equals."""
    place = tl.arange(0, PLACES)[:, None]
    row = tl.arange(0, ROWS)[None, :]
    real = (place < NUM_DRAFTS) & (row < num_rows)
    survival = tl.load(survivals + row * NUM_DRAFTS + place, mask=real, other=0.0)
    limit = tl.load(most + row, mask=row < num_rows, other=0)
    possible = real & (place < limit) & (survival >= least)
    key = tl.where(possible, survival.to(tl.int32, bitcast=True), -1)
    # At least `budget` keys are at `low` or above, if there are so many; fewer at `high`.
    low = budget * 0
    high = low + INFINITE
    while low + 1 < high:
        middle = low + (high - low) // 2
        enough = tl.sum(tl.sum(tl.where(key >= middle, 1, 0), 1), 0) >= budget
        low = tl.where(enough, middle, low)
        high = tl.where(enough, high, middle)
    above = tl.where(key > low, 1, 0)
    equal = tl.where(key == low, 1, 0)
    room = budget - tl.sum(tl.sum(above, 1), 0)
    rank = tl.reshape(tl.cumsum(tl.reshape(equal, [PLACES * ROWS]), 0), [PLACES, ROWS])
    taken = above + tl.where(rank <= room, equal, 0)
    index = tl.arange(0, ROWS)
    tl.store(windows + index, tl.sum(taken, 0), mask=index < num_rows)
# fmt: on


class TritonAllotting:
    """Implements `Allot`."""

    def __init__(self, launch: Launch, *, max_rows: int) -> None:
        """The most rows it is given."""
        self._launch = launch
        self._rows = next_power_of_2(max_rows)

    def __call__(self, survivals: Tensor, most: Tensor, budget: int, *, least: float) -> Tensor:
        """See Allot."""
        num_rows, num_drafts = survivals.shape
        windows = torch.empty(num_rows, dtype=torch.int32, device=survivals.device)
        allot_rows[(1,)](
            survivals.contiguous(),
            most,
            windows,
            least,
            num_rows,
            budget,
            NUM_DRAFTS=num_drafts,
            PLACES=next_power_of_2(num_drafts),
            ROWS=self._rows,
            **self._launch.plain(num_warps=8),
        )
        return windows
