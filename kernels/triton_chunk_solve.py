"""The delta rule within a chunk: what each token takes in, given those before it.

With A[i, j] = strength(i) × kᵢ·kⱼ × decay from j to i, for j < i, the chunk takes in own - reading × S of its first
state S, where (I + A) own = strength × v and (I + A) reading = strength × decay × k. Solved by blocks of 16 tokens: the
diagonal blocks are inverted, the others substituted forward.
"""

import triton.language as tl

from corymb.kernels.recurrence import GRID
from corymb.kernels.triton_fold import EPS, sigmoid, softplus
from corymb.kernels.triton_jit import Count, jit

PIECE = tl.constexpr(GRID)
BLOCK = tl.constexpr(16)
NUM_BLOCKS = tl.constexpr(GRID // 16)


# fmt: off
@jit
def refine(a: tl.tensor, b: tl.tensor) -> tl.tensor:
    """a @ b of float32 operands, to nearly all their bits: errors of a solution are carried from block to block."""
    return tl.dot(a, b, input_precision="tf32x3")


@jit
def multiply(a: tl.tensor, b: tl.tensor, WIDE: tl.constexpr, TYPE: tl.constexpr) -> tl.tensor:
    """a @ b in float32. WIDE: of float32 operands, to nearly all their bits; else of operands rounded to TYPE."""
    if WIDE:
        return refine(a.to(tl.float32), b.to(tl.float32))
    return tl.dot(a.to(TYPE), b.to(TYPE))


@jit
def inverse_lengths(rows: tl.tensor) -> tl.tensor:
    """1 ÷ length of each row. Products are weighed by it instead of their operands, which keep all their bits."""
    wide = rows.to(tl.float32)
    return 1.0 / tl.sqrt(tl.sum(wide * wide, 1) + EPS)


@jit
def sum_decays(decay: tl.tensor) -> tl.tensor:
    """Decay from the chunk's first token through each one, in float64: differences of large sums follow."""
    return tl.cumsum(decay.to(tl.float64), 0)


@jit
def pick(numbers: tl.tensor, block: tl.constexpr) -> tl.tensor:
    """A block of a chunk's numbers."""
    at = tl.arange(0, BLOCK) + block * BLOCK
    return tl.sum(tl.where(at[:, None] == tl.arange(0, PIECE)[None, :], numbers[None, :], 0.0), 1)


@jit
def invert_diagonal(system: tl.tensor) -> None:
    """Replaces the diagonal blocks of A by the inverses of I + A there, all blocks at once, row by row."""
    block = tl.arange(0, NUM_BLOCKS)[:, None, None]
    row = tl.arange(0, BLOCK)[None, :, None]
    column = tl.arange(0, BLOCK)[None, None, :]
    place = system + (block * BLOCK + row) * PIECE + block * BLOCK + column
    below = -tl.load(place)
    inverse = tl.where(row == column, 1.0, 0.0) + tl.zeros([NUM_BLOCKS, BLOCK, BLOCK], tl.float32)
    for index in range(1, BLOCK):
        factors = tl.sum(tl.where(row == index, below, 0.0), 1)  # [NUM_BLOCKS, BLOCK], zero from `index` on
        new = tl.sum(factors[:, :, None] * inverse, 1)
        inverse += tl.where(row == index, new[:, None, :], 0.0)
    tl.store(place, inverse)


@jit
def load_block(system: tl.tensor, row: tl.constexpr, column: tl.constexpr) -> tl.tensor:
    """One block of the system."""
    at = (tl.arange(0, BLOCK) + row * BLOCK)[:, None] * PIECE + (tl.arange(0, BLOCK) + column * BLOCK)[None, :]
    return tl.load(system + at)


@jit
def substitute(
    system: tl.tensor, first: tl.tensor, second: tl.tensor, third: tl.tensor, fourth: tl.tensor
) -> tl.tensor:
    """Solves for four blocks of right-hand sides."""
    first = refine(load_block(system, 0, 0), first)
    second -= refine(load_block(system, 1, 0), first)
    second = refine(load_block(system, 1, 1), second)
    third -= refine(load_block(system, 2, 0), first)
    third -= refine(load_block(system, 2, 1), second)
    third = refine(load_block(system, 2, 2), third)
    fourth -= refine(load_block(system, 3, 0), first)
    fourth -= refine(load_block(system, 3, 1), second)
    fourth -= refine(load_block(system, 3, 2), third)
    fourth = refine(load_block(system, 3, 3), fourth)
    return first, second, third, fourth


@jit
def load_rows(
    source: tl.tensor, stride: tl.tensor, first: tl.tensor, last: tl.tensor, dim: tl.tensor, SIZE: tl.constexpr,
    block: tl.constexpr,
) -> tl.tensor:
    """A block of a chunk's tokens, float32."""
    token = first + block * BLOCK + tl.arange(0, BLOCK)
    wanted = (token < last)[:, None] & (dim < SIZE)[None, :]
    return tl.load(source + token.to(tl.int64)[:, None] * stride + dim[None, :], mask=wanted, other=0.0).to(tl.float32)


@jit
def store_rows(
    target: tl.tensor, stride: tl.tensor, first: tl.tensor, last: tl.tensor, dim: tl.tensor, rows: tl.tensor,
    SIZE: tl.constexpr, block: tl.constexpr,
) -> None:
    """Writes a block of a chunk's tokens."""
    token = first + block * BLOCK + tl.arange(0, BLOCK)
    wanted = (token < last)[:, None] & (dim < SIZE)[None, :]
    place = target + token.to(tl.int64)[:, None] * stride + dim[None, :]
    tl.store(place, rows.to(target.dtype.element_ty), mask=wanted)


@jit
def weigh_keys(
    keys: tl.tensor, stride: tl.tensor, first: tl.tensor, last: tl.tensor, dim: tl.tensor, weights: tl.tensor,
    SIZE: tl.constexpr, block: tl.constexpr,
) -> tl.tensor:
    """A block of keys of length 1, each times its weight."""
    rows = load_rows(keys, stride, first, last, dim, SIZE, block)
    return rows * (pick(weights, block) * inverse_lengths(rows))[:, None]


@jit
def solve_pieces(
    mixed: tl.tensor, strengths: tl.tensor, decays: tl.tensor, rate: tl.tensor, bias: tl.tensor,
    piece_rows: tl.tensor, piece_firsts: tl.tensor, widths: tl.tensor, systems: tl.tensor,
    own: tl.tensor, reading: tl.tensor,
    mixed_stride: tl.tensor, strength_stride: tl.tensor, decay_stride: tl.tensor, short_width: "Count",
    KEYS_AT: tl.constexpr, VALUES_AT: tl.constexpr, HEADS: tl.constexpr, GROUP: tl.constexpr,
    KEY_DIM: tl.constexpr, VALUE_DIM: tl.constexpr, BLOCK_K: tl.constexpr, BLOCK_V: tl.constexpr,
    WIDE: tl.constexpr,
) -> None:
    """Program (p, h) solves piece p for head h into own [T, HEADS, VALUE_DIM] and reading [T, HEADS, KEY_DIM].

    Pieces of rows of at most `short_width` tokens are left out.
    """
    piece, head = tl.program_id(0), tl.program_id(1)
    if tl.load(widths + tl.load(piece_rows + piece)) <= short_width:
        return
    first, last = tl.load(piece_firsts + piece), tl.load(piece_firsts + piece + 1)
    index = tl.arange(0, PIECE)
    token = (first + index).to(tl.int64)
    present = token < last
    raw = tl.load(decays + token * decay_stride + head, mask=present, other=0.0).to(tl.float32)
    decay = tl.where(present, tl.load(rate + head) * softplus(raw + tl.load(bias + head)), 0.0)
    since = sum_decays(decay)
    raw = tl.load(strengths + token * strength_stride + head, mask=present, other=0.0).to(tl.float32)
    strength = tl.where(present, sigmoid(raw), 0.0)
    key_dim = tl.arange(0, BLOCK_K)
    keys = mixed + KEYS_AT + head // GROUP * KEY_DIM
    place = keys + token[:, None] * mixed_stride + key_dim[None, :]
    key = tl.load(place, mask=present[:, None] & (key_dim < KEY_DIM)[None, :], other=0.0)
    key_weight = inverse_lengths(key)
    between = (since[:, None] - since[None, :]).to(tl.float32)
    earlier = index[:, None] > index[None, :]
    weight = tl.where(earlier, tl.exp(tl.where(earlier, between, 0.0)), 0.0)
    weight = weight * (strength * key_weight)[:, None] * key_weight[None, :]
    product = multiply(key, tl.trans(key), WIDE, mixed.dtype.element_ty) * weight
    system = systems + (piece * HEADS + head).to(tl.int64) * (PIECE * PIECE)
    tl.store(system + index[:, None] * PIECE + index[None, :], product)
    tl.debug_barrier()
    invert_diagonal(system)
    tl.debug_barrier()
    grown = tl.exp(since.to(tl.float32)) * strength
    a, b, c, d = substitute(
        system,
        weigh_keys(keys, mixed_stride, first, last, key_dim, grown, KEY_DIM, 0),
        weigh_keys(keys, mixed_stride, first, last, key_dim, grown, KEY_DIM, 1),
        weigh_keys(keys, mixed_stride, first, last, key_dim, grown, KEY_DIM, 2),
        weigh_keys(keys, mixed_stride, first, last, key_dim, grown, KEY_DIM, 3),
    )
    target = reading + head * KEY_DIM
    store_rows(target, HEADS * KEY_DIM, first, last, key_dim, a, KEY_DIM, 0)
    store_rows(target, HEADS * KEY_DIM, first, last, key_dim, b, KEY_DIM, 1)
    store_rows(target, HEADS * KEY_DIM, first, last, key_dim, c, KEY_DIM, 2)
    store_rows(target, HEADS * KEY_DIM, first, last, key_dim, d, KEY_DIM, 3)
    value_dim = tl.arange(0, BLOCK_V)
    values = mixed + VALUES_AT + head * VALUE_DIM
    a, b, c, d = substitute(
        system,
        load_rows(values, mixed_stride, first, last, value_dim, VALUE_DIM, 0) * pick(strength, 0)[:, None],
        load_rows(values, mixed_stride, first, last, value_dim, VALUE_DIM, 1) * pick(strength, 1)[:, None],
        load_rows(values, mixed_stride, first, last, value_dim, VALUE_DIM, 2) * pick(strength, 2)[:, None],
        load_rows(values, mixed_stride, first, last, value_dim, VALUE_DIM, 3) * pick(strength, 3)[:, None],
    )
    target = own + head * VALUE_DIM
    store_rows(target, HEADS * VALUE_DIM, first, last, value_dim, a, VALUE_DIM, 0)
    store_rows(target, HEADS * VALUE_DIM, first, last, value_dim, b, VALUE_DIM, 1)
    store_rows(target, HEADS * VALUE_DIM, first, last, value_dim, c, VALUE_DIM, 2)
    store_rows(target, HEADS * VALUE_DIM, first, last, value_dim, d, VALUE_DIM, 3)
# fmt: on
