"""Lays out windows of drafts on a GPU, in one launch, where a captured graph expects them."""

import triton.language as tl
from torch import Tensor

from corymb.kernels.packing import Packed, Windows
from corymb.kernels.triton_jit import Count, Launch, jit, next_power_of_2


# fmt: off
@jit
def pack_windows(
    rows: tl.tensor, starts: tl.tensor, widths: tl.tensor, anchors: tl.tensor, drafts: tl.tensor,
    table: tl.tensor, slot_map: tl.tensor,
    row_out: tl.tensor, width_out: tl.tensor, start_out: tl.tensor, offset_out: tl.tensor,
    owners: tl.tensor, places: tl.tensor, token_ids: tl.tensor, positions: tl.tensor, slots: tl.tensor,
    sliding_slots: tl.tensor, draft_stride: tl.tensor, table_stride: tl.tensor,
    num_rows: "Count", num_tokens: "Count", ROWS: tl.constexpr, BLOCK: tl.constexpr, HAS_MAP: tl.constexpr,
) -> None:
    """Program i lays out row i: a window, or behind those a token of padding, as long as tokens are left."""
    index = tl.program_id(0)
    every = tl.arange(0, ROWS)
    every_width = tl.load(widths + every, mask=every < num_rows, other=0)
    further = tl.sum(every_width, 0) + index - num_rows  # the padding's token
    is_window = index < num_rows
    row = tl.load(rows + index, mask=is_window, other=0)
    start = tl.load(starts + index, mask=is_window, other=0)
    width = tl.load(widths + index, mask=is_window, other=0)
    width = tl.where(is_window, width, tl.where(further < num_tokens, 1, 0))
    before = tl.sum(tl.where(every < index, every_width, 0), 0)
    offset = tl.where(is_window, before, tl.minimum(further, num_tokens))
    tl.store(row_out + index, row.to(tl.int32))
    tl.store(width_out + index, width)
    tl.store(start_out + index, start)
    tl.store(offset_out + index, offset)
    tl.store(offset_out + num_tokens, num_tokens)  # the same by all
    place = tl.arange(0, BLOCK)
    real = place < width
    known = real & is_window
    position = tl.where(known, start + place, 0)
    slot = tl.load(table + row * table_stride + position, mask=known, other=0)
    draft = tl.load(drafts + index.to(tl.int64) * draft_stride + place - 1, mask=known & (place > 0), other=0)
    token_id = tl.where(place == 0, tl.load(anchors + index, mask=is_window, other=0), draft)
    at = offset + place
    tl.store(owners + at, tl.where(known, index, num_rows), mask=real)
    tl.store(places + at, place, mask=real)
    tl.store(token_ids + at, token_id, mask=real)
    tl.store(positions + at, position.to(tl.int64), mask=real)
    tl.store(slots + at, slot.to(tl.int64), mask=real)
    if HAS_MAP:
        tl.store(sliding_slots + at, tl.load(slot_map + slot, mask=real, other=0).to(tl.int64), mask=real)
# fmt: on


class TritonPacking:
    """Implements `Packing`; its launch may be captured in a CUDA graph."""

    def __init__(self, launch: Launch, *, max_rows: int, max_width: int) -> None:
        """The most and the widest windows it is given."""
        self._launch = launch
        self._rows = next_power_of_2(max_rows)
        self._block = next_power_of_2(max_width)

    def __call__(self, windows: Windows, table: Tensor, slot_map: Tensor | None, out: Packed) -> None:
        """See Packing."""
        num_tokens, num_drafts = len(out.token_ids), windows.drafts.shape[1]
        pack_windows[(num_tokens,)](
            windows.rows,
            windows.starts,
            windows.widths,
            windows.anchors,
            windows.drafts if num_drafts else windows.anchors,  # a pointer that is never followed
            table,
            table if slot_map is None else slot_map,
            out.rows,
            out.widths,
            out.starts,
            out.offsets,
            out.owners,
            out.places,
            out.token_ids,
            out.positions,
            out.slots,
            out.slots if out.sliding_slots is None else out.sliding_slots,
            num_drafts,
            table.stride(0),
            len(windows.rows),
            num_tokens,
            ROWS=self._rows,
            BLOCK=self._block,
            HAS_MAP=slot_map is not None,
            **self._launch.plain(num_warps=1),
        )
