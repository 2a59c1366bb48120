"""What becomes of new heads inside attention, where every row has one new token: norms, turns and the cache."""

import triton.language as tl

from corymb.kernels.triton_jit import jit
from corymb.kernels.triton_plan import TILE_BLOCKS, TILE_COLUMNS, TILE_OFFSET, TILE_TOKEN
from corymb.kernels.triton_store import to_cache

ROWS_AT_ONCE = tl.constexpr(4)  # few rows end in one lane


# fmt: off
@jit
def change_heads(
    heads: tl.tensor, wanted: tl.tensor, weight: tl.tensor, turns: tl.tensor, eps: tl.tensor,
    HALF: tl.constexpr, BLOCK_D: tl.constexpr, NORM: tl.constexpr, TURN: tl.constexpr,
) -> tl.tensor:
    """Reads heads [M, BLOCK_D] that begin at `heads` [M, 1], norms them and turns them by what begins at `turns`
    [M, 1]; rounds where `prepare_heads` does."""
    dim = tl.arange(0, BLOCK_D)
    inside = dim < 2 * HALF
    partner_dim = tl.where(dim < HALF, dim + HALF, dim - HALF)
    raw = tl.load(heads + dim[None, :], mask=wanted, other=0.0)
    value = raw.to(tl.float32)
    if NORM:
        inverse = (1.0 / tl.sqrt(tl.sum(value * value, 1) / (2 * HALF) + eps))[:, None]
        value = value * inverse * tl.load(weight + dim, mask=inside, other=0.0)[None, :]
        value = value.to(raw.dtype).to(tl.float32)
    if TURN:
        partner = tl.load(heads + partner_dim[None, :], mask=wanted, other=0.0).to(tl.float32)
        if NORM:
            partner = partner * inverse * tl.load(weight + partner_dim, mask=inside, other=0.0)[None, :]
            partner = partner.to(raw.dtype).to(tl.float32)
        angle = tl.where(dim < HALF, dim, dim - HALF)[None, :]
        cos = tl.load(turns + angle, mask=wanted, other=0.0)
        sin = tl.load(turns + HALF + angle, mask=wanted, other=0.0)
        value = value * cos + partner * tl.where((dim < HALF)[None, :], -sin, sin)
    return value.to(raw.dtype)


@jit
def store_new(
    key_heads: tl.tensor, weight: tl.tensor, turns: tl.tensor, keys: tl.tensor, values: tl.tensor, slots: tl.tensor,
    tiles: tl.tensor, tile: tl.tensor, num_tiles: tl.tensor, block: tl.tensor, last_block: tl.tensor,
    token_stride: tl.tensor, head_stride: tl.tensor, turn_stride: tl.tensor, slot_stride: tl.tensor, eps: tl.tensor,
    inverse_key_scale: tl.tensor, inverse_value_scale: tl.tensor,
    NUM_KV_HEADS: tl.constexpr, HALF: tl.constexpr, BLOCK_D: tl.constexpr,
    NORM: tl.constexpr, TURN: tl.constexpr, LIMIT: tl.constexpr,
) -> None:
    """Stores the new keys and values of the rows whose last block is one of [block, last_block), this lane's: no other
    lane reads them. `key_heads`: the key of token 0; `tile`: the lane's first."""
    dim = tl.arange(0, BLOCK_D)
    while (tile < num_tiles) & (tl.load(tiles + tile * TILE_COLUMNS + TILE_OFFSET) < last_block):
        index = tile + tl.arange(0, ROWS_AT_ONCE)
        line = tiles + index * TILE_COLUMNS
        real = index < num_tiles
        end = tl.load(line + TILE_OFFSET, mask=real, other=0) + tl.load(line + TILE_BLOCKS, mask=real, other=0)
        owned = real & (end > block) & (end <= last_block)
        token = tl.load(line + TILE_TOKEN, mask=owned, other=0)
        wanted = owned[:, None] & (dim < 2 * HALF)[None, :]
        wide = token.to(tl.int64)[:, None]
        place = key_heads + wide * token_stride
        key = change_heads(place, wanted, weight, turns + wide * turn_stride, eps, HALF, BLOCK_D, NORM, TURN)
        value = tl.load(place + NUM_KV_HEADS * head_stride + dim[None, :], mask=wanted, other=0.0)
        spot = tl.load(slots + token, mask=owned, other=0).to(tl.int64)[:, None] * slot_stride + dim[None, :]
        tl.store(keys + spot, to_cache(key, inverse_key_scale, LIMIT, keys.dtype.element_ty), mask=wanted)
        tl.store(values + spot, to_cache(value, inverse_value_scale, LIMIT, values.dtype.element_ty), mask=wanted)
        tile += ROWS_AT_ONCE
# fmt: on
