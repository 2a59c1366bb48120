"""A step of one token a row: its heads are normed, turned and stored inside attention itself."""

import triton.language as tl

from corymb.kernels.triton_blocks import cap
from corymb.kernels.triton_jit import jit
from corymb.kernels.triton_plan import TILE_FIRST_KEY, TILE_OFFSET, TILE_POSITION, TILE_ROW
from corymb.kernels.triton_prefetch import LINE_BYTES, prefetch_lines
from corymb.kernels.triton_store import to_cache


# fmt: off
@jit
def prefetch_first(
    keys: tl.tensor, values: tl.tensor, line: tl.tensor, table: tl.tensor, table_stride: tl.tensor,
    slot_map: tl.tensor, block: tl.tensor, slot_stride: tl.tensor,
    HEAD_DIM: tl.constexpr, BLOCK_N: tl.constexpr, HAS_MAP: tl.constexpr,
) -> None:
    """Asks for a block of keys and values of the tile at `line` while the kernel before this one still runs. That one
    may be writing the newest of them: the second level of cache is where both meet."""
    first = tl.load(line + TILE_FIRST_KEY) + (block - tl.load(line + TILE_OFFSET)) * BLOCK_N
    position = first + tl.arange(0, BLOCK_N)
    place = table + tl.load(line + TILE_ROW).to(tl.int64) * table_stride + position
    slot = tl.load(place, mask=position < tl.load(line + TILE_POSITION), other=0)
    if HAS_MAP:
        slot = tl.load(slot_map + slot)
    item_bytes: tl.constexpr = keys.dtype.element_ty.primitive_bitwidth // 8
    lines: tl.constexpr = (HEAD_DIM * item_bytes + LINE_BYTES - 1) // LINE_BYTES
    for index in tl.static_range(lines):
        part = slot.to(tl.int64) * slot_stride + index * (LINE_BYTES // item_bytes)
        prefetch_lines(keys + part)
        prefetch_lines(values + part)


@jit
def change_heads(
    heads: tl.tensor, wanted: tl.tensor, weight: tl.tensor, turns: tl.tensor, eps: tl.tensor,
    HALF: tl.constexpr, BLOCK_D: tl.constexpr, NORM: tl.constexpr, TURN: tl.constexpr,
) -> tl.tensor:
    """Norms and turns heads [M, BLOCK_D] that begin at `heads` [M, 1]; rounds where `prepare_heads` does."""
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
        angle = tl.where(dim < HALF, dim, dim - HALF)
        cos = tl.load(turns + angle, mask=inside, other=0.0)
        sin = tl.load(turns + HALF + angle, mask=inside, other=0.0)
        value = value * cos[None, :] + partner * tl.where(dim < HALF, -sin, sin)[None, :]
    return value.to(raw.dtype)


@jit
def take_new(
    query: tl.tensor, heads: tl.tensor, key_weight: tl.tensor, turns: tl.tensor, keys: tl.tensor, values: tl.tensor,
    owns: tl.tensor, scale: tl.tensor, eps: tl.tensor, inverse_key_scale: tl.tensor, inverse_value_scale: tl.tensor,
    NUM_KV_HEADS: tl.constexpr, HALF: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_D: tl.constexpr,
    NORM: tl.constexpr, TURN: tl.constexpr, LIMIT: tl.constexpr, SOFT_CAP: tl.constexpr,
) -> tl.tensor:
    """Begins a tile with the new token's key and value, which stand at `heads` and NUM_KV_HEADS further, and stores
    them at `keys` and `values`. Only one lane of a tile `owns` them; the others begin with nothing."""
    dim = tl.arange(0, BLOCK_D)
    query_row = tl.arange(0, BLOCK_M)
    inside = (dim < 2 * HALF)[None, :] & (query_row >= 0)[:, None] & owns
    # Every query row reads the same key: a product of one column, without a tensor core.
    lines = heads + (query_row * 0)[:, None]
    key = change_heads(lines, inside, key_weight, turns, eps, HALF, BLOCK_D, NORM, TURN)
    value = tl.load(lines + NUM_KV_HEADS * (2 * HALF) + dim[None, :], mask=inside, other=0.0)
    key = to_cache(key, inverse_key_scale, LIMIT, keys.dtype.element_ty)
    value = to_cache(value, inverse_value_scale, LIMIT, values.dtype.element_ty)
    once = inside & (query_row == 0)[:, None]
    tl.store(keys + (query_row * 0)[:, None] + dim[None, :], key, mask=once)
    tl.store(values + (query_row * 0)[:, None] + dim[None, :], value, mask=once)
    logit = cap(tl.sum(query.to(tl.float32) * key.to(tl.float32), 1) * scale, SOFT_CAP)
    top = tl.where(owns, logit, float("-inf"))
    norm = tl.where(owns, 1.0, 0.0) + tl.zeros([BLOCK_M], tl.float32)
    return top, norm, value.to(tl.float32)


@jit
def begin_joined(
    heads: tl.tensor, q_place: tl.tensor, wanted: tl.tensor, keys: tl.tensor, values: tl.tensor, slots: tl.tensor,
    turns: tl.tensor, query_weight: tl.tensor, key_weight: tl.tensor, token: tl.tensor, key_head: tl.tensor,
    owns: tl.tensor, scale: tl.tensor, eps: tl.tensor, inverse_key_scale: tl.tensor, inverse_value_scale: tl.tensor,
    token_stride: tl.tensor, head_stride: tl.tensor, slot_stride: tl.tensor,
    NUM_KV_HEADS: tl.constexpr, HALF: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_D: tl.constexpr,
    NORM: tl.constexpr, TURN: tl.constexpr, LIMIT: tl.constexpr, SOFT_CAP: tl.constexpr,
) -> tl.tensor:
    """The queries of one token, and what they have seen before any block: their own key, in the lane that owns it."""
    query = change_heads(q_place, wanted, query_weight, turns, eps, HALF, BLOCK_D, NORM, TURN)
    new_key = heads + token.to(tl.int64) * token_stride + key_head * head_stride
    spot = tl.load(slots + token).to(tl.int64) * slot_stride
    top, norm, total = take_new(
        query, new_key, key_weight, turns, keys + spot, values + spot, owns, scale, eps, inverse_key_scale,
        inverse_value_scale, NUM_KV_HEADS, HALF, BLOCK_M, BLOCK_D, NORM, TURN, LIMIT, SOFT_CAP,
    )
    return query, top, norm, total
# fmt: on
