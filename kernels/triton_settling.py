"""Accepts greedy drafts in one launch."""

import torch
import triton.language as tl
from torch import Tensor

from corymb.kernels.packing import Packed
from corymb.kernels.sampling import Choice
from corymb.kernels.settling import Drafted, Settled
from corymb.kernels.standing import Standing
from corymb.kernels.triton_jit import Count, Launch, jit, next_power_of_2


# fmt: off
@jit
def settle_rows(
    token_ids: tl.tensor, usable: tl.tensor, offsets: tl.tensor, widths: tl.tensor, slots: tl.tensor,
    rows: tl.tensor, starts: tl.tensor, drafts: tl.tensor, windows: tl.tensor, confidence: tl.tensor,
    last_sampled: tl.tensor, lengths: tl.tensor, kept_slots: tl.tensor, table: tl.tensor,
    table_stride: tl.tensor, confidence_stride: tl.tensor, num_rows: "Count",
    NUM_DRAFTS: tl.constexpr, BLOCK: tl.constexpr, CONFIDENT: tl.constexpr,
) -> None:
    """Program i settles row i; those behind the windows keep nothing."""
    index = tl.program_id(0)
    is_window = index < num_rows
    offset = tl.load(offsets + index)
    width = tl.load(widths + index)
    place = tl.arange(0, BLOCK)
    at = offset + tl.minimum(place, width - 1)
    said = is_window & (place <= NUM_DRAFTS)
    own = tl.load(token_ids + at, mask=said, other=0)
    good = tl.load(usable + at, mask=said, other=0) != 0
    window = tl.load(windows + index, mask=is_window, other=0)
    line = drafts + index.to(tl.int64) * NUM_DRAFTS
    draft = tl.load(line + place, mask=is_window & (place < NUM_DRAFTS), other=-1)
    # The place behind the window is never right, so there is a first one.
    count = tl.min(tl.where((own != draft) | (place >= window), place, BLOCK), 0) + 1
    count = tl.where(is_window, count, 0)
    slot = tl.load(slots + at, mask=place < width, other=0)
    tl.store(kept_slots + offset + place, tl.where(place < count, slot, 0), mask=place < width)
    row = tl.load(rows + index, mask=is_window, other=0)
    last = tl.sum(tl.where(place == count - 1, own, 0), 0)
    tl.store(last_sampled + row, last, mask=is_window)
    tl.store(lengths + row, tl.load(starts + index, mask=is_window, other=0) + count, mask=is_window)
    broken = tl.max(tl.where((place < count) & (good == 0), 1, 0), 0)
    entry = table + index.to(tl.int64) * table_stride
    tl.store(entry + place, own.to(tl.int32), mask=said)
    tl.store(entry + NUM_DRAFTS + 1, count, mask=is_window)
    tl.store(entry + NUM_DRAFTS + 2, width - 1, mask=is_window)
    tl.store(entry + NUM_DRAFTS + 3, window, mask=is_window)
    tl.store(entry + NUM_DRAFTS + 4, 1 - broken, mask=is_window)
    if CONFIDENT:
        drafted = is_window & (place < NUM_DRAFTS)
        sure = tl.load(confidence + index.to(tl.int64) * confidence_stride + place, mask=drafted, other=0.0)
        tl.store(entry + NUM_DRAFTS + 5 + place, sure.to(tl.int32, bitcast=True), mask=drafted)
# fmt: on


class TritonSettling:
    """Implements `Settle`."""

    def __init__(self, launch: Launch) -> None:
        self._launch = launch

    def __call__(
        self, choice: Choice, packed: Packed, standing: Standing, drafted: Drafted, settled: Settled
    ) -> Tensor:
        """See Settle."""
        num_rows, num_drafts = drafted.token_ids.shape
        confidence = drafted.confidence
        columns = num_drafts + 5 + (0 if confidence is None else num_drafts)
        table = torch.empty((num_rows, columns), dtype=torch.int32, device=packed.slots.device)
        unused = choice.token_ids  # a pointer that is never followed
        settle_rows[(len(packed.slots),)](
            choice.token_ids,
            choice.usable,
            packed.offsets,
            packed.widths,
            packed.slots,
            standing.rows,
            standing.lengths,
            drafted.token_ids if num_drafts else unused,
            drafted.windows,
            unused if confidence is None else confidence,
            settled.last_sampled,
            settled.lengths,
            settled.kept_slots,
            table,
            columns,
            0 if confidence is None else confidence.stride(0),
            num_rows,
            NUM_DRAFTS=num_drafts,
            BLOCK=next_power_of_2(num_drafts + 1),
            CONFIDENT=confidence is not None,
            **self._launch.plain(num_warps=1),
        )
        return table
