"""Attention to latents (MLA): all heads of a token read the same lines, which are keys and, in part, values."""

import triton.language as tl

from corymb.kernels.triton_jit import Count, jit


# fmt: off
@jit
def store_lines(
    x: tl.tensor, pool: tl.tensor, slots: tl.tensor, x_stride: tl.tensor, slot_stride: tl.tensor,
    SIZE: tl.constexpr, BLOCK: tl.constexpr, EARLY: tl.constexpr,
) -> None:
    """Program t stores line t of x at its slot."""
    if EARLY:
        tl.extra.cuda.gdc_wait()
        tl.extra.cuda.gdc_launch_dependents()
    token = tl.program_id(0).to(tl.int64)
    index = tl.arange(0, BLOCK)
    inside = index < SIZE
    line = tl.load(x + token * x_stride + index, mask=inside, other=0.0)
    place = pool + tl.load(slots + token).to(tl.int64) * slot_stride
    tl.store(place + index, line.to(pool.dtype.element_ty), mask=inside)


@jit
def spread_rows(
    rows: tl.tensor, offsets: tl.tensor, token_rows: tl.tensor, BLOCK: tl.constexpr, EARLY: tl.constexpr
) -> None:
    """Program r writes row r's place in the page table for each of its new tokens."""
    if EARLY:
        tl.extra.cuda.gdc_wait()  # and lets nobody start early
    index = tl.program_id(0)
    row = tl.load(rows + index)
    last = tl.load(offsets + index + 1)
    for start in range(tl.load(offsets + index), last, BLOCK):
        token = start + tl.arange(0, BLOCK)
        tl.store(token_rows + token, row, mask=token < last)


@jit
def dot_rows(left: tl.tensor, right: tl.tensor, WIDEN: tl.constexpr) -> tl.tensor:
    """left @ right.T in float32."""
    if WIDEN:
        return tl.dot(left.to(tl.float32), tl.trans(right.to(tl.float32)))
    return tl.dot(left, tl.trans(right), input_precision="ieee")


@jit
def read_lines(
    q_latent: tl.tensor, q_rope: tl.tensor, pool: tl.tensor, line: tl.tensor, first: tl.tensor, last: tl.tensor,
    scale: tl.tensor, slot_stride: tl.tensor,
    LATENT: tl.constexpr, ROPE: tl.constexpr, BLOCK_H: tl.constexpr, BLOCK_L: tl.constexpr, BLOCK_R: tl.constexpr,
    BLOCK_N: tl.constexpr, WIDEN: tl.constexpr, STAGES: tl.constexpr,
) -> tl.tensor:
    """Attends to the slots listed at line[first:last]: running maximum, sum and weighted sum of latents."""
    latent = tl.arange(0, BLOCK_L)
    rope = tl.arange(0, BLOCK_R)
    top = tl.full([BLOCK_H], float("-inf"), tl.float32)
    norm = tl.zeros([BLOCK_H], tl.float32)
    total = tl.zeros([BLOCK_H, BLOCK_L], tl.float32)
    for start in tl.range(first, last, BLOCK_N, num_stages=STAGES):
        place = start + tl.arange(0, BLOCK_N)
        present = place < last
        # Slots that nobody wrote may hold NaN: they must not even be multiplied by zero.
        slot = tl.load(line + place, mask=present, other=0).to(tl.int64)[:, None] * slot_stride
        seen = present[:, None]
        value = tl.load(pool + slot + latent[None, :], mask=seen & (latent < LATENT)[None, :], other=0.0)
        key = tl.load(pool + slot + LATENT + rope[None, :], mask=seen & (rope < ROPE)[None, :], other=0.0)
        logits = (dot_rows(q_latent, value, WIDEN) + dot_rows(q_rope, key, WIDEN)) * scale
        logits = tl.where(present[None, :], logits, float("-inf"))
        new_top = tl.maximum(top, tl.max(logits, 1))
        weights = tl.exp2(logits - new_top[:, None])
        shrink = tl.exp2(top - new_top)
        norm = norm * shrink + tl.sum(weights, 1)
        if WIDEN:
            total = total * shrink[:, None] + tl.dot(weights, value.to(tl.float32))
        else:
            total = tl.dot(weights.to(value.dtype), value, total * shrink[:, None], input_precision="ieee")
        top = new_top
    return top, norm, total


@jit
def attend_latents(
    q: tl.tensor, pool: tl.tensor, out: tl.tensor, table: tl.tensor, token_rows: tl.tensor, positions: tl.tensor,
    chosen: tl.tensor, counts: tl.tensor, part_totals: tl.tensor, part_norms: tl.tensor, scale: tl.tensor,
    slot_stride: tl.tensor, table_stride: tl.tensor, chosen_stride: tl.tensor, num_splits: "Count",
    HEADS: tl.constexpr, LATENT: tl.constexpr, ROPE: tl.constexpr, BLOCK_H: tl.constexpr, BLOCK_L: tl.constexpr,
    BLOCK_R: tl.constexpr, BLOCK_N: tl.constexpr, SPLIT: tl.constexpr, SPARSE: tl.constexpr, WIDEN: tl.constexpr,
    STAGES: tl.constexpr, EARLY: tl.constexpr,
) -> None:
    """Program (h, t, s) attends with token t's heads [h × BLOCK_H, …) to part s of num_splits of the token's keys.

    These are the first `positions` + 1 of its row or, if SPARSE, those that were chosen for it.
    """
    if EARLY:
        tl.extra.cuda.gdc_wait()
        tl.extra.cuda.gdc_launch_dependents()
    token = tl.program_id(1).to(tl.int64)
    split = tl.program_id(2)
    head = tl.program_id(0) * BLOCK_H + tl.arange(0, BLOCK_H)
    latent = tl.arange(0, BLOCK_L)
    rope = tl.arange(0, BLOCK_R)
    if SPARSE:
        count = tl.load(counts + token)
        line = chosen + token * chosen_stride
    else:
        count = tl.load(positions + token).to(tl.int32) + 1
        line = table + tl.load(token_rows + token).to(tl.int64) * table_stride
    share = (((count + num_splits - 1) // num_splits) + BLOCK_N - 1) // BLOCK_N * BLOCK_N
    first = tl.minimum(split * share, count)
    last = tl.minimum(first + share, count)
    wanted = (head < HEADS)[:, None]
    of_head = q + (token * HEADS + head)[:, None] * (LATENT + ROPE)
    inside = wanted & (latent < LATENT)[None, :]
    q_latent = tl.load(of_head + latent[None, :], mask=inside, other=0.0)
    q_rope = tl.load(of_head + LATENT + rope[None, :], mask=wanted & (rope < ROPE)[None, :], other=0.0)
    top, norm, total = read_lines(
        q_latent, q_rope, pool, line, first, last, scale, slot_stride,
        LATENT, ROPE, BLOCK_H, BLOCK_L, BLOCK_R, BLOCK_N, WIDEN, STAGES,
    )
    if SPLIT:
        part = (token * num_splits + split) * HEADS + head
        tl.store(part_norms + 2 * part, top, mask=head < HEADS)
        tl.store(part_norms + 2 * part + 1, norm, mask=head < HEADS)
        tl.store(part_totals + part[:, None] * LATENT + latent[None, :], total, mask=inside)
    else:
        place = out + (token * HEADS + head)[:, None] * LATENT + latent[None, :]
        tl.store(place, (total / norm[:, None]).to(out.dtype.element_ty), mask=inside)


@jit
def merge_latents(
    part_totals: tl.tensor, part_norms: tl.tensor, out: tl.tensor, num_splits: "Count",
    HEADS: tl.constexpr, LATENT: tl.constexpr, BLOCK_L: tl.constexpr, EARLY: tl.constexpr,
) -> None:
    """Program (h, t) merges the parts of token t's head h, in their order."""
    if EARLY:
        tl.extra.cuda.gdc_wait()
        tl.extra.cuda.gdc_launch_dependents()
    token = tl.program_id(1).to(tl.int64)
    head = tl.program_id(0)
    latent = tl.arange(0, BLOCK_L)
    inside = latent < LATENT
    # The first part always has a key; later ones may have none, and a top of -inf.
    part = token * num_splits * HEADS + head
    top = tl.load(part_norms + 2 * part)
    norm = tl.load(part_norms + 2 * part + 1)
    total = tl.load(part_totals + part * LATENT + latent, mask=inside, other=0.0)
    for _ in range(1, num_splits):
        part += HEADS
        part_top = tl.load(part_norms + 2 * part)
        new_top = tl.maximum(top, part_top)
        shrink = tl.exp2(top - new_top)
        part_shrink = tl.exp2(part_top - new_top)
        part_total = tl.load(part_totals + part * LATENT + latent, mask=inside, other=0.0)
        norm = norm * shrink + tl.load(part_norms + 2 * part + 1) * part_shrink
        total = total * shrink + part_total * part_shrink
        top = new_top
    place = out + (token * HEADS + head) * LATENT + latent
    tl.store(place, (total / norm).to(out.dtype.element_ty), mask=inside)
# fmt: on
