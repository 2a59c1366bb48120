"""The attention kernel: one persistent lane reads its share of key blocks, whatever rows they belong to."""

import triton.language as tl

from corymb.kernels.triton_blocks import read_tile
from corymb.kernels.triton_jit import Count, jit
from corymb.kernels.triton_plan import (
    TILE_BLOCKS,
    TILE_COLUMNS,
    TILE_FIRST_KEY,
    TILE_OFFSET,
    TILE_POSITION,
    TILE_ROW,
    TILE_TOKEN,
    TILE_WIDTH,
)
from corymb.kernels.triton_prefetch import ask_when_done
from corymb.kernels.triton_sinks import take_sinks


# fmt: off
@jit
def write_part(
    part_totals: tl.tensor, part_norms: tl.tensor, index: tl.tensor,
    top: tl.tensor, norm: tl.tensor, total: tl.tensor, wanted: tl.tensor,
    BLOCK_M: tl.constexpr, BLOCK_D: tl.constexpr,
) -> None:
    """Leaves a part of a tile for whichever lane merges it."""
    query = tl.arange(0, BLOCK_M)
    dim = tl.arange(0, BLOCK_D)
    line = part_norms + index.to(tl.int64) * (2 * BLOCK_M) + query
    tl.store(line, top)
    tl.store(line + BLOCK_M, norm)
    place = index.to(tl.int64) * (BLOCK_M * BLOCK_D) + query[:, None] * BLOCK_D + dim[None, :]
    tl.store(part_totals + place, total, mask=wanted)


@jit
def merge_parts(
    part_totals: tl.tensor, part_norms: tl.tensor, first_lane: tl.tensor, num_parts: tl.tensor,
    head: tl.tensor, wanted: tl.tensor,
    NUM_KV_HEADS: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_D: tl.constexpr, STAGES: tl.constexpr,
) -> tl.tensor:
    """Sums a tile's parts, in their order. Reads past L1: other programs have just written them."""
    query = tl.arange(0, BLOCK_M)
    dim = tl.arange(0, BLOCK_D)
    top = tl.full([BLOCK_M], float("-inf"), tl.float32)
    norm = tl.zeros([BLOCK_M], tl.float32)
    total = tl.zeros([BLOCK_M, BLOCK_D], tl.float32)
    for part in tl.range(0, num_parts, num_stages=STAGES):
        index = (2 * (first_lane + part) + tl.where(part == 0, 1, 0)) * NUM_KV_HEADS + head
        line = part_norms + index.to(tl.int64) * (2 * BLOCK_M) + query
        part_top = tl.load(line, cache_modifier=".cg")
        part_norm = tl.load(line + BLOCK_M, cache_modifier=".cg")
        place = index.to(tl.int64) * (BLOCK_M * BLOCK_D) + query[:, None] * BLOCK_D + dim[None, :]
        part_total = tl.load(part_totals + place, mask=wanted, other=0.0, cache_modifier=".cg")
        new_top = tl.maximum(top, part_top)
        anchor = tl.where(new_top == float("-inf"), 0.0, new_top)
        shrink = tl.exp2(top - anchor)
        part_shrink = tl.exp2(part_top - anchor)
        norm = norm * shrink + part_norm * part_shrink
        total = total * shrink[:, None] + part_total * part_shrink[:, None]
        top = new_top
    return norm, total


@jit
def settle_part(
    part_totals: tl.tensor, part_norms: tl.tensor, ticket_place: tl.tensor, lane: tl.tensor, low: tl.tensor,
    first_lane: tl.tensor, num_parts: tl.tensor, head: tl.tensor,
    top: tl.tensor, norm: tl.tensor, total: tl.tensor, wanted: tl.tensor,
    NUM_KV_HEADS: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_D: tl.constexpr, STAGES: tl.constexpr,
) -> tl.tensor:
    """Leaves this lane's part of a tile, and merges all parts if it is the last to arrive."""
    index = (2 * lane + tl.where(low == 0, 1, 0)) * NUM_KV_HEADS + head
    write_part(part_totals, part_norms, index, top, norm, total, wanted, BLOCK_M, BLOCK_D)
    # All threads' stores come before the ticket is drawn; it releases them to the lane that arrives last.
    tl.debug_barrier()
    is_last = tl.atomic_add(ticket_place, 1, sem="acq_rel") == num_parts - 1
    if is_last:
        tl.debug_barrier()
        tl.store(ticket_place, 0)  # ready for the next launch
        norm, total = merge_parts(
            part_totals, part_norms, first_lane, num_parts, head, wanted, NUM_KV_HEADS, BLOCK_M, BLOCK_D, STAGES
        )
    return norm, total, is_last


@jit
def attend_lanes(
    q: tl.tensor, out: tl.tensor, keys: tl.tensor, values: tl.tensor, table: tl.tensor, slot_map: tl.tensor,
    tiles: tl.tensor, lanes: tl.tensor, totals: tl.tensor, tickets: tl.tensor,
    part_totals: tl.tensor, part_norms: tl.tensor, sinks: tl.tensor, scale: tl.tensor, value_scale: tl.tensor,
    q_token_stride: tl.tensor, q_head_stride: tl.tensor, slot_stride: tl.tensor, head_stride: tl.tensor,
    table_stride: tl.tensor, num_lanes: "Count",
    ahead: tl.tensor, ahead_rows: "Count", ahead_stride: "Count", ahead_lines: "Count",
    NUM_KV_HEADS: tl.constexpr, GROUP: tl.constexpr, HEAD_DIM: tl.constexpr, BLOCK_D: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, WINDOW: tl.constexpr, SOFT_CAP: tl.constexpr,
    HAS_MAP: tl.constexpr, SPLIT: tl.constexpr, WIDE: tl.constexpr, STAGES: tl.constexpr,
    PART_STAGES: tl.constexpr, WIDEN: tl.constexpr, SINKS: tl.constexpr, EARLY: tl.constexpr, AHEAD: tl.constexpr,
) -> None:
    """Program i × NUM_KV_HEADS + h is lane i of KV head h: neighbours read the same tokens' heads, which lie together.

    SPLIT lanes follow `plan_lanes`; whichever lane finishes a tile last merges its parts. Without SPLIT each tile stays
    with one lane, so that a token's sums have one order in every batch. EARLY: the plan and the page table must have
    been written before the kernel that stands before this one, which only prepares q and the new keys and values.
    AHEAD: a lane that is done asks for a share of the beginning of the weight `ahead`.
    """
    head = tl.program_id(0) % NUM_KV_HEADS
    lane = tl.program_id(0) // NUM_KV_HEADS
    query = tl.arange(0, BLOCK_M)
    dim = tl.arange(0, BLOCK_D)
    share = tl.load(totals)
    if SPLIT:
        block = lane * share
        last_block = tl.minimum(block + share, tl.load(totals + 1))
        tile = tl.load(lanes + lane, mask=block < last_block, other=0)
    else:
        tile = lane
        block = lane
        last_block = tl.load(totals + 2)  # lanes count tiles here
    if EARLY:
        tl.extra.cuda.gdc_wait()
        tl.extra.cuda.gdc_launch_dependents()
    while block < last_block:
        line = tiles + tile * TILE_COLUMNS
        table_line = table + tl.load(line + TILE_ROW).to(tl.int64) * table_stride
        token = tl.load(line + TILE_TOKEN)
        width = tl.load(line + TILE_WIDTH)
        num_blocks = tl.load(line + TILE_BLOCKS)
        offset = tl.load(line + TILE_OFFSET)
        low = 0
        high = num_blocks
        if SPLIT:
            low = block - offset
            high = tl.minimum(last_block - offset, num_blocks)
        # Query m is head m % GROUP of the tile's token m // GROUP.
        q_token = (token + query // GROUP).to(tl.int64)[:, None]
        q_head = (head * GROUP + query % GROUP)[:, None]
        wanted = (query // GROUP < width)[:, None] & (dim < HEAD_DIM)[None, :]
        q_tile = tl.load(q + q_token * q_token_stride + q_head * q_head_stride + dim[None, :], mask=wanted, other=0.0)
        top, norm, total = read_tile(
            q_tile, keys + head * head_stride, values + head * head_stride, table_line, slot_map,
            tl.load(line + TILE_POSITION), width, tl.load(line + TILE_FIRST_KEY), low, high, scale, slot_stride,
            GROUP, HEAD_DIM, BLOCK_D, BLOCK_M, BLOCK_N, WINDOW, SOFT_CAP, HAS_MAP, WIDE, WIDEN, STAGES,
        )
        if SINKS:
            top, norm, total = take_sinks(top, norm, total, sinks, head, low == 0, GROUP, BLOCK_M)
        is_last = True
        if SPLIT:
            first_lane = offset // share
            num_parts = (offset + num_blocks - 1) // share - first_lane + 1
            if num_parts > 1:
                norm, total, is_last = settle_part(
                    part_totals, part_norms, tickets + tile * NUM_KV_HEADS + head, lane, low, first_lane, num_parts,
                    head, top, norm, total, wanted, NUM_KV_HEADS, BLOCK_M, BLOCK_D, PART_STAGES,
                )
        if is_last:
            result = total / norm[:, None] * value_scale
            place = q_token * (NUM_KV_HEADS * GROUP * HEAD_DIM) + q_head * HEAD_DIM + dim[None, :]
            tl.store(out + place, result.to(out.dtype.element_ty), mask=wanted)
        if SPLIT:
            block = offset + high
            tile += 1
        else:
            tile += num_lanes
            block = tile
    ask_when_done(ahead, ahead_rows, ahead_stride, ahead_lines, AHEAD)
# fmt: on
