"""Divides one step's attention into equal lanes, on the device.

A *tile* is a few consecutive new tokens of one row, with all query heads of one KV head; it reads *blocks* of keys.
All tiles' blocks stand in one line, and lane i takes blocks [i × share, (i + 1) × share) of it, so that every lane
reads the same amount whatever the rows' lengths. A tile that crosses lanes is computed in parts.

    tile 0            tile 1      tile 2
    |b b b b b b b b b|b b b b b b|b b b b|
    |lane 0     |lane 1     |lane 2     |lane 3
"""

import triton.language as tl

from corymb.kernels.triton_jit import Count, jit

# Columns of the tile table.
TILE_ROW = tl.constexpr(0)  # row of the page table
TILE_TOKEN = tl.constexpr(1)  # first new token, an index into q
TILE_WIDTH = tl.constexpr(2)  # new tokens
TILE_POSITION = tl.constexpr(3)  # position of the first one in its sequence
TILE_FIRST_KEY = tl.constexpr(4)  # position of the first block's first key
TILE_BLOCKS = tl.constexpr(5)
TILE_OFFSET = tl.constexpr(6)  # blocks of all tiles before
TILE_COLUMNS = tl.constexpr(8)  # padded, so that a tile is one 32-byte sector


@jit
def count_blocks(
    tile: tl.tensor,
    widths: tl.tensor,
    starts: tl.tensor,
    TILE_TOKENS: tl.constexpr,
    BLOCK_N: tl.constexpr,
    WINDOW: tl.constexpr,
) -> tl.tensor:
    """Tile number `tile` of every row: its tokens, first position, first key and blocks (0 where there is none)."""
    first = tile * TILE_TOKENS
    width = tl.minimum(widths - first, TILE_TOKENS)
    position = starts + first
    first_key = position * 0
    if WINDOW > 0:
        # Blocks start at multiples of BLOCK_N, so that a token is summed in the same order in whichever tile it is.
        first_key = tl.maximum(position - WINDOW + 1, 0) // BLOCK_N * BLOCK_N
    blocks = (position + width - first_key + BLOCK_N - 1) // BLOCK_N
    return width, position, first_key, tl.where(width > 0, blocks, 0)


@jit
def plan_lanes(
    rows: tl.tensor,
    widths: tl.tensor,
    starts: tl.tensor,
    offsets: tl.tensor,
    tiles: tl.tensor,
    lanes: tl.tensor,
    totals: tl.tensor,
    num_rows: "Count",
    num_lanes: "Count",
    min_share: "Count",
    TILE_TOKENS: tl.constexpr,
    BLOCK_N: tl.constexpr,
    WINDOW: tl.constexpr,
    ROWS: tl.constexpr,
    EARLY: tl.constexpr,
) -> None:
    """One program: fills `tiles` (a line a tile), `lanes` (first tile of each), `totals` (share, blocks, tiles)."""
    if EARLY:
        tl.extra.cuda.gdc_wait()  # and lets nobody start early: attention reads the plan without waiting
    index = tl.arange(0, ROWS)
    real = index < num_rows
    table_row = tl.load(rows + index, mask=real, other=0)
    width = tl.load(widths + index, mask=real, other=0)
    start = tl.load(starts + index, mask=real, other=0)
    token = tl.load(offsets + index, mask=real, other=0)
    num_tiles = (width + TILE_TOKENS - 1) // TILE_TOKENS
    tile_base = tl.cumsum(num_tiles, 0) - num_tiles
    most_tiles = tl.max(num_tiles, 0)

    row_blocks = tl.zeros([ROWS], tl.int32)
    for tile in range(most_tiles):
        _, _, _, blocks = count_blocks(tile, width, start, TILE_TOKENS, BLOCK_N, WINDOW)
        row_blocks += blocks
    total = tl.sum(row_blocks, 0)
    share = tl.maximum((total + num_lanes - 1) // num_lanes, min_share)
    tl.store(totals, share)
    tl.store(totals + 1, total)
    tl.store(totals + 2, tl.sum(num_tiles, 0))

    offset = tl.cumsum(row_blocks, 0) - row_blocks
    for tile in range(most_tiles):
        tile_width, position, first_key, blocks = count_blocks(tile, width, start, TILE_TOKENS, BLOCK_N, WINDOW)
        live = blocks > 0
        line = tiles + (tile_base + tile) * TILE_COLUMNS
        tl.store(line + TILE_ROW, table_row, mask=live)
        tl.store(line + TILE_TOKEN, token + tile * TILE_TOKENS, mask=live)
        tl.store(line + TILE_WIDTH, tile_width, mask=live)
        tl.store(line + TILE_POSITION, position, mask=live)
        tl.store(line + TILE_FIRST_KEY, first_key, mask=live)
        tl.store(line + TILE_BLOCKS, blocks, mask=live)
        tl.store(line + TILE_OFFSET, offset, mask=live)
        first_lane = (offset + share - 1) // share
        num_starts = tl.where(live, (offset + blocks - 1) // share - first_lane + 1, 0)  # lanes that start in this tile
        for lane in range(tl.max(num_starts, 0)):
            tl.store(lanes + first_lane + lane, tile_base + tile, mask=lane < num_starts)
        offset += blocks
