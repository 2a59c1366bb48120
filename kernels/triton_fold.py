"""States with decay, folded token by token: decoding rows, and prompts where results must not depend on cuts."""

import triton.language as tl

from corymb.kernels.recurrence import LENGTH_EPS
from corymb.kernels.triton_jit import Count, jit

EPS = tl.constexpr(LENGTH_EPS)


# fmt: off
@jit
def softplus(x: tl.tensor) -> tl.tensor:
    """log(1 + exp(x))."""
    return tl.maximum(x, 0.0) + tl.log(1.0 + tl.exp(-tl.abs(x)))


@jit
def sigmoid(x: tl.tensor) -> tl.tensor:
    """1 ÷ (1 + exp(-x))."""
    return 1.0 / (1.0 + tl.exp(-x))


@jit
def fold_rows(
    mixed: tl.tensor, strengths: tl.tensor, steps: tl.tensor, rate: tl.tensor, bias: tl.tensor, skip: tl.tensor,
    states: tl.tensor, slots: tl.tensor, offsets: tl.tensor, widths: tl.tensor,
    marks: tl.tensor, mark_slots: tl.tensor, out: tl.tensor,
    mixed_stride: tl.tensor, strength_stride: tl.tensor, step_stride: tl.tensor, state_stride: tl.tensor,
    scale: tl.tensor, least_step: tl.tensor, most_step: tl.tensor, most_width: "Count",
    QUERIES_AT: tl.constexpr, KEYS_AT: tl.constexpr, VALUES_AT: tl.constexpr,
    HEADS: tl.constexpr, GROUP: tl.constexpr, KEY_DIM: tl.constexpr, VALUE_DIM: tl.constexpr,
    BLOCK_K: tl.constexpr, BLOCK_V: tl.constexpr, DELTA: tl.constexpr, MOVES: tl.constexpr, MARKS: tl.constexpr,
) -> None:
    """Program (r, h, b) takes a block of the value dimensions of head h through all tokens of row r.

    Rows wider than `most_width` are left alone. DELTA: the delta rule; else Mamba's scan. MOVES: the state behind the
    row is kept. MARKS: the state after marks[r] tokens goes to mark_slots[r].
    """
    row, head = tl.program_id(0), tl.program_id(1)
    width = tl.load(widths + row)
    if width > most_width:
        return
    key = tl.arange(0, BLOCK_K)
    value = tl.program_id(2) * BLOCK_V + tl.arange(0, BLOCK_V)
    is_key, is_value = key < KEY_DIM, value < VALUE_DIM
    slot = tl.load(slots + row).to(tl.int64)
    kept = is_key[:, None] & is_value[None, :] & (slot > 0)
    inner = head * (KEY_DIM * VALUE_DIM) + key[:, None] * VALUE_DIM + value[None, :]
    place = states + slot * state_stride + inner
    state = tl.load(place, mask=kept, other=0.0)
    head_rate, head_bias = tl.load(rate + head), tl.load(bias + head)
    token = tl.load(offsets + row).to(tl.int64)
    end = token + width
    if MARKS:
        marked = token + tl.load(marks + row)
        mark_place = states + tl.load(mark_slots + row).to(tl.int64) * state_stride + inner
    while token < end:
        line = mixed + token * mixed_stride
        k = tl.load(line + KEYS_AT + head // GROUP * KEY_DIM + key, mask=is_key, other=0.0).to(tl.float32)
        q = tl.load(line + QUERIES_AT + head // GROUP * KEY_DIM + key, mask=is_key, other=0.0).to(tl.float32)
        v = tl.load(line + VALUES_AT + head * VALUE_DIM + value, mask=is_value, other=0.0).to(tl.float32)
        size = softplus(tl.load(steps + token * step_stride + head).to(tl.float32) + head_bias)
        if DELTA:
            k = k / tl.sqrt(tl.sum(k * k, 0) + EPS)
            q = q / tl.sqrt(tl.sum(q * q, 0) + EPS) * scale
            state *= tl.exp(head_rate * size)
            strength = sigmoid(tl.load(strengths + token * strength_stride + head).to(tl.float32))
            taken = (v - tl.sum(state * k[:, None], 0)) * strength
        else:
            size = tl.minimum(tl.maximum(size, least_step), most_step)
            state *= tl.exp(head_rate * size)
            taken = v * size
        state += k[:, None] * taken[None, :]
        read = tl.sum(state * q[:, None], 0)
        if not DELTA:
            read += tl.load(skip + head) * v
        target = out + (token * HEADS + head) * VALUE_DIM + value
        tl.store(target, read.to(out.dtype.element_ty), mask=is_value)
        token += 1
        if MARKS:  # noqa: SIM102 - without marks there is no second condition
            if token == marked:
                tl.store(mark_place, state, mask=kept)
    if MOVES:
        tl.store(place, state, mask=kept)
# fmt: on
