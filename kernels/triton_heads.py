"""What happens to query, key and value heads between their product and attention: norms, turns and the cache."""

import triton.language as tl

from corymb.kernels.triton_jit import jit
from corymb.kernels.triton_store import to_cache


# fmt: off
@jit
def turn_halves(
    low: tl.tensor, high: tl.tensor, turns: tl.tensor, dim: tl.tensor, inside: tl.tensor, HALF: tl.constexpr
) -> tl.tensor:
    """Rotates dimension i of each head with i + HALF."""
    cos = tl.load(turns + dim, mask=inside, other=0.0)[None, :]
    sin = tl.load(turns + HALF + dim, mask=inside, other=0.0)[None, :]
    return low * cos - high * sin, high * cos + low * sin


@jit
def norm_halves(
    low: tl.tensor, high: tl.tensor, is_query: tl.tensor, query_weight: tl.tensor, key_weight: tl.tensor,
    eps: tl.tensor, dim: tl.tensor, inside: tl.tensor, HALF: tl.constexpr,
) -> tl.tensor:
    """Norms each head with the weight of its kind."""
    inverse = 1.0 / tl.sqrt((tl.sum(low * low, 1) + tl.sum(high * high, 1)) / (2 * HALF) + eps)
    query_low = tl.load(query_weight + dim, mask=inside, other=0.0)[None, :]
    query_high = tl.load(query_weight + HALF + dim, mask=inside, other=0.0)[None, :]
    key_low = tl.load(key_weight + dim, mask=inside, other=0.0)[None, :]
    key_high = tl.load(key_weight + HALF + dim, mask=inside, other=0.0)[None, :]
    low = low * inverse[:, None] * tl.where(is_query[:, None], query_low, key_low)
    high = high * inverse[:, None] * tl.where(is_query[:, None], query_high, key_high)
    return low, high


@jit
def prepare_heads(
    heads: tl.tensor, turns: tl.tensor, query_weight: tl.tensor, key_weight: tl.tensor,
    keys: tl.tensor, values: tl.tensor, slots: tl.tensor,
    token_stride: tl.tensor, turn_stride: tl.tensor, slot_stride: tl.tensor, eps: tl.tensor,
    inverse_key_scale: tl.tensor, inverse_value_scale: tl.tensor,
    NUM_HEADS: tl.constexpr, NUM_KV_HEADS: tl.constexpr, HALF: tl.constexpr, BLOCK_HALF: tl.constexpr,
    BLOCK_HEADS: tl.constexpr, NORM: tl.constexpr, TURN: tl.constexpr, STORE: tl.constexpr, LIMIT: tl.constexpr,
    EARLY: tl.constexpr,
) -> None:
    """Program (t, b) does heads [b × BLOCK_HEADS, …) of token t, which stand as queries, keys, values.

    Queries are changed in place; with STORE keys and values go to the token's slot, else keys change in place too.
    """
    if EARLY:
        tl.extra.cuda.gdc_wait()
        tl.extra.cuda.gdc_launch_dependents()
    token = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1) * BLOCK_HEADS + tl.arange(0, BLOCK_HEADS)
    dim = tl.arange(0, BLOCK_HALF)
    inside = dim < HALF
    is_query = head < NUM_HEADS
    is_key = (head >= NUM_HEADS) & (head < NUM_HEADS + NUM_KV_HEADS)
    is_value = (head >= NUM_HEADS + NUM_KV_HEADS) & (head < NUM_HEADS + 2 * NUM_KV_HEADS)
    place = heads + token * token_stride + head[:, None] * (2 * HALF) + dim[None, :]
    wanted = (head < NUM_HEADS + 2 * NUM_KV_HEADS)[:, None] & inside[None, :]
    raw_low = tl.load(place, mask=wanted, other=0.0)
    raw_high = tl.load(place + HALF, mask=wanted, other=0.0)
    low = raw_low.to(tl.float32)
    high = raw_high.to(tl.float32)
    if NORM:
        low, high = norm_halves(low, high, is_query, query_weight, key_weight, eps, dim, inside, HALF)
        # Rounded between the two steps, as the plain version does it.
        low = low.to(raw_low.dtype).to(tl.float32)
        high = high.to(raw_low.dtype).to(tl.float32)
    if TURN:
        low, high = turn_halves(low, high, turns + token * turn_stride, dim, inside, HALF)
    new_low = low.to(raw_low.dtype)
    new_high = high.to(raw_low.dtype)
    changed = (is_query if STORE else is_query | is_key)[:, None] & inside[None, :]
    tl.store(place, new_low, mask=changed)
    tl.store(place + HALF, new_high, mask=changed)
    if STORE:
        slot = tl.load(slots + token).to(tl.int64) * slot_stride
        spot = slot + (head - NUM_HEADS)[:, None] * (2 * HALF) + dim[None, :]
        stored = is_key[:, None] & inside[None, :]
        tl.store(keys + spot, to_cache(new_low, inverse_key_scale, LIMIT, keys.dtype.element_ty), mask=stored)
        tl.store(keys + spot + HALF, to_cache(new_high, inverse_key_scale, LIMIT, keys.dtype.element_ty), mask=stored)
        spot = spot - NUM_KV_HEADS * (2 * HALF)
        stored = is_value[:, None] & inside[None, :]
        low_value = to_cache(raw_low, inverse_value_scale, LIMIT, values.dtype.element_ty)
        high_value = to_cache(raw_high, inverse_value_scale, LIMIT, values.dtype.element_ty)
        tl.store(values + spot, low_value, mask=stored)
        tl.store(values + spot + HALF, high_value, mask=stored)
# fmt: on
