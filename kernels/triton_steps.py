"""What frames a step on the device: from what the host staged to what a model reads, and from tokens to results."""

import triton.language as tl
from torch import Tensor

from corymb.kernels.triton_jit import Count, Launch, jit

BLOCK = 256


# fmt: off
@jit
def open_tokens(
    token_ids: tl.tensor, token_rows: tl.tensor, positions: tl.tensor, slots: tl.tensor,
    last_sampled: tl.tensor, table: tl.tensor, slot_map: tl.tensor,
    wide_ids: tl.tensor, wide_positions: tl.tensor, wide_slots: tl.tensor, sliding_slots: tl.tensor,
    table_stride: tl.tensor, num_tokens: "Count", BLOCK: tl.constexpr, HAS_MAP: tl.constexpr,
) -> None:
    """Looks up sampled tokens (a negative id) by row, writes the page table, and widens everything to int64."""
    token = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    real = token < num_tokens
    row = tl.load(token_rows + token, mask=real, other=0).to(tl.int64)
    position = tl.load(positions + token, mask=real, other=0)
    slot = tl.load(slots + token, mask=real, other=0)
    token_id = tl.load(token_ids + token, mask=real, other=0).to(tl.int64)
    sampled = tl.load(last_sampled + row, mask=real & (token_id < 0), other=0)
    tl.store(wide_ids + token, tl.where(token_id < 0, sampled, token_id), mask=real)
    tl.store(wide_positions + token, position.to(tl.int64), mask=real)
    tl.store(wide_slots + token, slot.to(tl.int64), mask=real)
    tl.store(table + row * table_stride + position, slot, mask=real)
    if HAS_MAP:
        tl.store(sliding_slots + token, tl.load(slot_map + slot, mask=real, other=0).to(tl.int64), mask=real)


@jit
def close_rows(
    token_ids: tl.tensor, usable: tl.tensor, rows: tl.tensor, last_sampled: tl.tensor, results: tl.tensor,
    num_rows: "Count", BLOCK: tl.constexpr,
) -> None:
    """Remembers each row's token for the next step, and reports it: t, or -1 - t where the logits were unusable."""
    index = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    real = index < num_rows
    row = tl.load(rows + index, mask=real, other=0)
    token_id = tl.load(token_ids + index, mask=real, other=0)
    good = tl.load(usable + index, mask=real, other=0) != 0
    tl.store(last_sampled + row, token_id, mask=real)
    tl.store(results + index, tl.where(good, token_id, -1 - token_id).to(tl.int32), mask=real)
# fmt: on


def begin(
    staged: tuple[Tensor, Tensor, Tensor, Tensor],
    wide: tuple[Tensor, Tensor, Tensor, Tensor | None],
    last_sampled: Tensor,
    table: Tensor,
    slot_map: Tensor | None,
    *,
    launch: Launch,
) -> None:
    """Turns staged int32 token ids, token rows, positions and slots [T] into int64 ids, positions, slots and sliding
    slots [T]; table[row, position] = slot."""
    num_tokens = staged[0].shape[0]
    ids, positions, slots, sliding = wide
    open_tokens[(-(-num_tokens // BLOCK),)](
        *staged,
        last_sampled,
        table,
        table if slot_map is None else slot_map,
        ids,
        positions,
        slots,
        slots if sliding is None else sliding,
        table.stride(0),
        num_tokens,
        BLOCK=BLOCK,
        HAS_MAP=slot_map is not None,
        **launch.plain(num_warps=2),
    )


def end(
    token_ids: Tensor, usable: Tensor, rows: Tensor, last_sampled: Tensor, results: Tensor, *, launch: Launch
) -> None:
    """last_sampled[rows] = token_ids [N] int64, and what `unpack` reads into results [N] int32. Row 0 is nobody's."""
    num_rows = token_ids.shape[0]
    close_rows[(-(-num_rows // BLOCK),)](
        token_ids,
        usable,
        rows,
        last_sampled,
        results,
        num_rows,
        BLOCK=BLOCK,
        **launch.plain(num_warps=2),
    )
