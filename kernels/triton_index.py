"""The index of sparse attention: scores of all keys that a token sees, and the best of them without sorting."""

import triton.language as tl

from corymb.kernels.triton_cut import order
from corymb.kernels.triton_jit import Count, jit
from corymb.kernels.triton_latents import dot_rows


# fmt: off
@jit
def score_keys(
    q: tl.tensor, weights: tl.tensor, pool: tl.tensor, scores: tl.tensor,
    table: tl.tensor, token_rows: tl.tensor, positions: tl.tensor,
    q_stride: tl.tensor, weight_stride: tl.tensor, slot_stride: tl.tensor, table_stride: tl.tensor,
    score_stride: tl.tensor, num_splits: "Count",
    HEADS: tl.constexpr, DIM: tl.constexpr, BLOCK_H: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_N: tl.constexpr,
    TOP_K: tl.constexpr, WIDEN: tl.constexpr, STAGES: tl.constexpr, EARLY: tl.constexpr,
) -> None:
    """Program (s, t) scores every num_splits-th block of the keys that token t sees, unless all of them are chosen."""
    if EARLY:
        tl.extra.cuda.gdc_wait()
        tl.extra.cuda.gdc_launch_dependents()
    token = tl.program_id(1).to(tl.int64)
    count = tl.load(positions + token).to(tl.int32) + 1
    if count <= TOP_K:
        return
    head = tl.arange(0, BLOCK_H)
    dim = tl.arange(0, BLOCK_D)
    inside = (dim < DIM)[None, :]
    real = head < HEADS
    of_token = q + token * q_stride + head[:, None] * DIM
    query = tl.load(of_token + dim[None, :], mask=real[:, None] & inside, other=0.0)
    weight = tl.load(weights + token * weight_stride + head, mask=real, other=0.0)
    line = table + tl.load(token_rows + token).to(tl.int64) * table_stride
    for start in tl.range(tl.program_id(0) * BLOCK_N, count, num_splits * BLOCK_N, num_stages=STAGES):
        place = start + tl.arange(0, BLOCK_N)
        present = place < count
        slot = tl.load(line + place, mask=present, other=0).to(tl.int64)
        key = tl.load(pool + slot[:, None] * slot_stride + dim[None, :], mask=present[:, None] & inside, other=0.0)
        product = tl.maximum(dot_rows(query, key, WIDEN), 0.0)
        tl.store(scores + token * score_stride + place, tl.sum(product * weight[:, None], 0), mask=present)


@jit
def sortable(scores: tl.tensor, place: tl.tensor, present: tl.tensor) -> tl.tensor:
    """Scores as unsigned integers of the same order."""
    key = order(tl.load(scores + place, mask=present, other=0.0))
    return key.to(tl.uint32, bitcast=True) ^ 0x80000000


@jit
def narrow_cut(
    scores: tl.tensor, count: tl.tensor, wanted: tl.tensor, cut: tl.tensor, SHIFT: tl.constexpr, BLOCK: tl.constexpr
) -> tl.tensor:
    """Finds eight more bits of the key of the last of the `wanted` best among those whose higher bits are `cut`'s."""
    digit = tl.arange(0, 256)
    counts = tl.zeros([256], tl.int32)
    for start in range(0, count, BLOCK):
        place = start + tl.arange(0, BLOCK)
        alike = place < count
        key = sortable(scores, place, alike)
        if SHIFT < 24:
            alike &= (key >> (SHIFT + 8)) == (cut >> (SHIFT + 8))
        counts += tl.histogram(((key >> SHIFT) & 255).to(tl.int32), 256, mask=alike)
    at_least = tl.cumsum(counts, 0, reverse=True)
    best = tl.max(tl.where(at_least >= wanted, digit, 0), 0)
    above = tl.sum(tl.where(digit > best, counts, 0), 0)
    return cut | (best.to(tl.uint32) << SHIFT), wanted - above


@jit
def find_cut(scores: tl.tensor, count: tl.tensor, wanted: tl.tensor, BLOCK: tl.constexpr) -> tl.tensor:
    """The key of the last of the `wanted` best scores, and how many of its equals are among them."""
    cut, wanted = narrow_cut(scores, count, wanted, (count * 0).to(tl.uint32), 24, BLOCK)
    cut, wanted = narrow_cut(scores, count, wanted, cut, 16, BLOCK)
    cut, wanted = narrow_cut(scores, count, wanted, cut, 8, BLOCK)
    return narrow_cut(scores, count, wanted, cut, 0, BLOCK)


@jit
def select_keys(
    scores: tl.tensor, chosen: tl.tensor, counts: tl.tensor, table: tl.tensor, token_rows: tl.tensor,
    positions: tl.tensor, table_stride: tl.tensor, score_stride: tl.tensor, chosen_stride: tl.tensor,
    TOP_K: tl.constexpr, BLOCK: tl.constexpr, EARLY: tl.constexpr,
) -> None:
    """Program t lists the slots of token t's best keys in the order of positions, the earlier ones of equals."""
    if EARLY:
        tl.extra.cuda.gdc_wait()
        tl.extra.cuda.gdc_launch_dependents()
    token = tl.program_id(0).to(tl.int64)
    count = tl.load(positions + token).to(tl.int32) + 1
    line = table + tl.load(token_rows + token).to(tl.int64) * table_stride
    listed = chosen + token * chosen_stride
    tl.store(counts + token, tl.minimum(count, TOP_K))
    if count <= TOP_K:
        for start in range(0, count, BLOCK):
            place = start + tl.arange(0, BLOCK)
            tl.store(listed + place, tl.load(line + place, mask=place < count, other=0), mask=place < count)
    else:
        of_token = scores + token * score_stride
        cut, num_equal = find_cut(of_token, count, count * 0 + TOP_K, BLOCK)
        taken = 0
        equals = 0
        for start in range(0, count, BLOCK):
            place = start + tl.arange(0, BLOCK)
            present = place < count
            key = sortable(of_token, place, present)
            equal = tl.where(present & (key == cut), 1, 0)
            rank = equals + tl.cumsum(equal, 0)
            take = (present & (key > cut)) | ((equal > 0) & (rank <= num_equal))
            hit = tl.where(take, 1, 0)
            spot = taken + tl.cumsum(hit, 0) - 1
            tl.store(listed + spot, tl.load(line + place, mask=take, other=0), mask=take)
            taken += tl.sum(hit, 0)
            equals += tl.sum(equal, 0)
# fmt: on
