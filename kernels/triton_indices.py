"""Lists the slots that each row of a step reads, one row after another: the page indices that FlashInfer wants."""

import triton.language as tl
from torch import Tensor

from corymb.kernels.attention import RaggedLayout
from corymb.kernels.triton_jit import Launch, jit

BLOCK = 1024


# fmt: off
@jit
def list_slots(
    rows: tl.tensor, firsts: tl.tensor, bounds: tl.tensor, table: tl.tensor, slot_map: tl.tensor, out: tl.tensor,
    table_stride: tl.tensor, BLOCK: tl.constexpr, HAS_MAP: tl.constexpr,
) -> None:
    """Program r copies the slots of row r from position firsts[r] on to out[bounds[r] : bounds[r + 1]]."""
    row = tl.program_id(0)
    low = tl.load(bounds + row)
    count = tl.load(bounds + row + 1) - low
    line = table + tl.load(rows + row).to(tl.int64) * table_stride + tl.load(firsts + row)
    for start in range(0, count, BLOCK):
        index = start + tl.arange(0, BLOCK)
        slot = tl.load(line + index, mask=index < count, other=0)
        if HAS_MAP:
            slot = tl.load(slot_map + slot, mask=index < count, other=0)
        tl.store(out + low + index, slot, mask=index < count)
# fmt: on


def gather_slots(
    layout: RaggedLayout, firsts: Tensor, bounds: Tensor, out: Tensor, *, sliding: bool, launch: Launch
) -> None:
    """Fills `out` with the slots of positions firsts[r] … of every row; those of row r end at bounds[r + 1]."""
    slot_map = layout.full_to_sliding if sliding else layout.table
    assert slot_map is not None, "a layer with a window needs the full-to-sliding map"
    list_slots[(layout.rows.shape[0],)](
        layout.rows,
        firsts,
        bounds,
        layout.table,
        slot_map,
        out,
        layout.table.stride(0),
        BLOCK=BLOCK,
        HAS_MAP=sliding,
        **launch.plain(num_warps=4),
    )
