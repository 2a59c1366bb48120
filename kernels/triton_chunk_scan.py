"""States with decay, folded chunk by chunk: long rows."""

import triton.language as tl

from corymb.kernels.triton_chunk_solve import PIECE, inverse_lengths, multiply, sum_decays
from corymb.kernels.triton_fold import softplus
from corymb.kernels.triton_jit import Count, jit


# fmt: off
@jit
def load_heads(
    source: tl.tensor, token: tl.tensor, stride: tl.tensor, dim: tl.tensor, present: tl.tensor, SIZE: tl.constexpr
) -> tl.tensor:
    """One head's numbers of a chunk's tokens, zero where there is none."""
    return tl.load(
        source + token[:, None] * stride + dim[None, :], mask=present[:, None] & (dim < SIZE)[None, :], other=0.0
    )


@jit
def scan_rows(
    mixed: tl.tensor, own: tl.tensor, reading: tl.tensor, steps: tl.tensor, rate: tl.tensor, bias: tl.tensor,
    skip: tl.tensor, states: tl.tensor, slots: tl.tensor, widths: tl.tensor, row_pieces: tl.tensor,
    piece_firsts: tl.tensor, out: tl.tensor, mixed_stride: tl.tensor, step_stride: tl.tensor, state_stride: tl.tensor,
    scale: tl.tensor, least_step: tl.tensor, most_step: tl.tensor, short_width: "Count",
    QUERIES_AT: tl.constexpr, KEYS_AT: tl.constexpr, VALUES_AT: tl.constexpr,
    HEADS: tl.constexpr, GROUP: tl.constexpr, KEY_DIM: tl.constexpr, VALUE_DIM: tl.constexpr,
    BLOCK_K: tl.constexpr, BLOCK_V: tl.constexpr, DELTA: tl.constexpr, WIDE: tl.constexpr, STAGES: tl.constexpr,
) -> None:
    """Program (b, h, r) takes a block of the value dimensions of head h through all pieces of row r.

    Rows of at most `short_width` tokens are left alone. DELTA: the delta rule, with what `solve_pieces` left in `own`
    and `reading`; else Mamba's scan.
    """
    head, row = tl.program_id(1), tl.program_id(2)
    if tl.load(widths + row) <= short_width:
        return
    index = tl.arange(0, PIECE)
    key_dim = tl.arange(0, BLOCK_K)
    value_dim = tl.program_id(0) * BLOCK_V + tl.arange(0, BLOCK_V)
    slot = tl.load(slots + row).to(tl.int64)
    kept = (key_dim < KEY_DIM)[:, None] & (value_dim < VALUE_DIM)[None, :] & (slot > 0)
    place = slot * state_stride + head * (KEY_DIM * VALUE_DIM) + key_dim[:, None] * VALUE_DIM + value_dim[None, :]
    state = tl.load(states + place, mask=kept, other=0.0)
    head_rate, head_bias = tl.load(rate + head), tl.load(bias + head)
    queries = mixed + QUERIES_AT + head // GROUP * KEY_DIM
    keys = mixed + KEYS_AT + head // GROUP * KEY_DIM
    not_later = index[:, None] >= index[None, :]
    for piece in tl.range(tl.load(row_pieces + row), tl.load(row_pieces + row + 1), num_stages=STAGES):
        first, last = tl.load(piece_firsts + piece), tl.load(piece_firsts + piece + 1)
        token = (first + index).to(tl.int64)
        present = token < last
        size = softplus(tl.load(steps + token * step_stride + head, mask=present, other=0.0).to(tl.float32) + head_bias)
        query = load_heads(queries, token, mixed_stride, key_dim, present, KEY_DIM)
        key = load_heads(keys, token, mixed_stride, key_dim, present, KEY_DIM)
        query_weight = tl.full([PIECE], 1.0, tl.float32)
        key_weight = tl.full([PIECE], 1.0, tl.float32)
        if DELTA:
            query_weight = inverse_lengths(query) * scale
            key_weight = inverse_lengths(key)
            taken = load_heads(own + head * VALUE_DIM, token, HEADS * VALUE_DIM, value_dim, present, VALUE_DIM)
            read = load_heads(reading + head * KEY_DIM, token, HEADS * KEY_DIM, key_dim, present, KEY_DIM)
            taken = taken.to(tl.float32) - multiply(read, state, WIDE, mixed.dtype.element_ty)
        else:
            size = tl.minimum(tl.maximum(size, least_step), most_step)
            value = load_heads(mixed + VALUES_AT + head * VALUE_DIM, token, mixed_stride, value_dim, present, VALUE_DIM)
            taken = value.to(tl.float32) * size[:, None]
        since = sum_decays(tl.where(present, head_rate * size, 0.0))
        seen = multiply(query, tl.trans(key), WIDE, mixed.dtype.element_ty)
        between = tl.where(not_later, (since[:, None] - since[None, :]).to(tl.float32), float("-inf"))
        seen = seen * tl.exp(between) * key_weight[None, :]
        result = multiply(query, state, WIDE, mixed.dtype.element_ty) * tl.exp(since.to(tl.float32))[:, None]
        result += multiply(seen, taken, WIDE, mixed.dtype.element_ty)
        result = result * query_weight[:, None]
        if not DELTA:
            result += tl.load(skip + head) * value.to(tl.float32)
        target = out + token[:, None] * (HEADS * VALUE_DIM) + head * VALUE_DIM + value_dim[None, :]
        wanted = present[:, None] & (value_dim < VALUE_DIM)[None, :]
        tl.store(target, result.to(out.dtype.element_ty), mask=wanted)
        # Tokens that are not there have no decay: the last entry holds for the whole piece.
        total = tl.sum(tl.where(index == PIECE - 1, since, 0.0), 0)
        taken = taken * (tl.exp((total - since).to(tl.float32)) * key_weight)[:, None]
        state *= tl.exp(total.to(tl.float32))
        state += multiply(tl.trans(key), taken, WIDE, mixed.dtype.element_ty)
    tl.store(states + place, state, mask=kept)
# fmt: on
