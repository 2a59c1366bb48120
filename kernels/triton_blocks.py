"""The inner loop of attention: one tile of queries against blocks of keys found through the page table."""

import triton.language as tl

from corymb.kernels.triton_jit import jit

LOG2E = tl.constexpr(1.4426950408889634)


# fmt: off
@jit
def score(
    query: tl.tensor, key: tl.tensor, scale: tl.tensor, SOFT_CAP: tl.constexpr, WIDEN: tl.constexpr
) -> tl.tensor:
    """Query-key products as base-2 logits: `scale` already holds the log2(e) that exp2 needs."""
    if WIDEN:
        product = tl.dot(query.to(tl.float32), tl.trans(key.to(tl.float32)))
    else:
        product = tl.dot(query, tl.trans(key.to(query.dtype)), input_precision="ieee")
    product = product * scale
    if SOFT_CAP > 0:
        # cap × tanh(x ÷ cap), with tanh(y) = 1 - 2 ÷ (exp(2y) + 1).
        product = SOFT_CAP * LOG2E * (1 - 2 / (tl.exp2(product * (2 / SOFT_CAP)) + 1))
    return product


@jit
def read_blocks(
    query: tl.tensor, top: tl.tensor, norm: tl.tensor, total: tl.tensor, keys: tl.tensor, values: tl.tensor,
    table_line: tl.tensor, slot_map: tl.tensor, positions: tl.tensor, first: tl.tensor, last: tl.tensor,
    lowest_key: tl.tensor, num_keys: tl.tensor, scale: tl.tensor, slot_stride: tl.tensor,
    HEAD_DIM: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_N: tl.constexpr, WINDOW: tl.constexpr,
    SOFT_CAP: tl.constexpr, HAS_MAP: tl.constexpr, MASKED: tl.constexpr, WIDEN: tl.constexpr, STAGES: tl.constexpr,
) -> tl.tensor:
    """Attends to keys [first, last) in blocks. `top`, `norm`, `total`: running maximum, sum and weighted sum of values.

    Without MASKED every query sees every key of these blocks.
    """
    dim = tl.arange(0, BLOCK_D)
    inside = (dim < HEAD_DIM)[None, :]
    for block in tl.range(first, last, BLOCK_N, num_stages=STAGES):
        key_position = block + tl.arange(0, BLOCK_N)
        if MASKED:
            # Slots outside hold whatever was there before, NaN included: they must not even be multiplied by zero.
            present = (key_position >= lowest_key) & (key_position < num_keys)
            slot = tl.load(table_line + key_position, mask=present, other=0)
        else:
            slot = tl.load(table_line + key_position)
        if HAS_MAP:
            slot = tl.load(slot_map + slot)
        place = slot.to(tl.int64)[:, None] * slot_stride + dim[None, :]
        if MASKED:
            key = tl.load(keys + place, mask=present[:, None] & inside, other=0.0)
            value = tl.load(values + place, mask=present[:, None] & inside, other=0.0)
        elif HEAD_DIM < BLOCK_D:
            key = tl.load(keys + place, mask=inside, other=0.0)
            value = tl.load(values + place, mask=inside, other=0.0)
        else:
            key = tl.load(keys + place)
            value = tl.load(values + place)
        logits = score(query, key, scale, SOFT_CAP, WIDEN)
        if MASKED:
            seen = (key_position[None, :] <= positions[:, None]) & (key_position >= lowest_key)[None, :]
            if WINDOW > 0:
                seen &= key_position[None, :] > positions[:, None] - WINDOW
            logits = tl.where(seen, logits, float("-inf"))
        new_top = tl.maximum(top, tl.max(logits, 1))
        # A query that has seen no key yet has top -inf; -inf - -inf would be NaN.
        anchor = tl.where(new_top == float("-inf"), 0.0, new_top)
        weights = tl.exp2(logits - anchor[:, None])
        shrink = tl.exp2(top - anchor)
        norm = norm * shrink + tl.sum(weights, 1)
        if WIDEN:
            total = total * shrink[:, None] + tl.dot(weights, value.to(tl.float32))
        else:
            narrow = weights.to(query.dtype)
            total = tl.dot(narrow, value.to(query.dtype), total * shrink[:, None], input_precision="ieee")
        top = new_top
    return top, norm, total


@jit
def read_tile(
    query: tl.tensor, keys: tl.tensor, values: tl.tensor, table_line: tl.tensor, slot_map: tl.tensor,
    position: tl.tensor, width: tl.tensor, first_key: tl.tensor, low: tl.tensor, high: tl.tensor,
    scale: tl.tensor, slot_stride: tl.tensor,
    GROUP: tl.constexpr, HEAD_DIM: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
    WINDOW: tl.constexpr, SOFT_CAP: tl.constexpr, HAS_MAP: tl.constexpr, WIDE: tl.constexpr, WIDEN: tl.constexpr,
    STAGES: tl.constexpr,
) -> tl.tensor:
    """Attends with `width` tokens from `position` on to blocks [low, high) of their keys, counted from first_key."""
    positions = position + tl.arange(0, BLOCK_M) // GROUP
    num_keys = position + width
    lowest_key = 0
    if WINDOW > 0:
        lowest_key = tl.maximum(position - WINDOW + 1, 0)
    top = tl.full([BLOCK_M], float("-inf"), tl.float32)
    norm = tl.zeros([BLOCK_M], tl.float32)
    total = tl.zeros([BLOCK_M, BLOCK_D], tl.float32)
    first = first_key + low * BLOCK_N
    last = tl.minimum(first_key + high * BLOCK_N, num_keys)
    # A narrow tile masks every block: a second loop would start its pipeline anew.
    # [first, inner) crosses the window's edge   [inner, outer) seen by all queries   [outer, last) crosses the diagonal
    outer = first
    if WIDE:
        inner = first
        if WINDOW > 0:
            edge = tl.maximum(num_keys - WINDOW, 0)
            inner = first_key + (tl.maximum(edge - first_key, 0) + BLOCK_N - 1) // BLOCK_N * BLOCK_N
            inner = tl.minimum(tl.maximum(inner, first), last)
            top, norm, total = read_blocks(
                query, top, norm, total, keys, values, table_line, slot_map, positions, first, inner, lowest_key,
                num_keys, scale, slot_stride,
                HEAD_DIM, BLOCK_D, BLOCK_N, WINDOW, SOFT_CAP, HAS_MAP, True, WIDEN, STAGES,
            )
        outer = first_key + (position + 1 - first_key) // BLOCK_N * BLOCK_N
        outer = tl.maximum(tl.minimum(outer, last), inner)
        top, norm, total = read_blocks(
            query, top, norm, total, keys, values, table_line, slot_map, positions, inner, outer, lowest_key,
            num_keys, scale, slot_stride,
            HEAD_DIM, BLOCK_D, BLOCK_N, WINDOW, SOFT_CAP, HAS_MAP, False, WIDEN, STAGES,
        )
    return read_blocks(
        query, top, norm, total, keys, values, table_line, slot_map, positions, outer, last, lowest_key,
        num_keys, scale, slot_stride,
        HEAD_DIM, BLOCK_D, BLOCK_N, WINDOW, SOFT_CAP, HAS_MAP, True, WIDEN, STAGES,
    )
# fmt: on
