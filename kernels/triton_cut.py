"""Where top-k and top-p cut a row of logits, without sorting it: a search over the values for the last one kept."""

import triton.language as tl

from corymb.kernels.triton_jit import jit

LOWEST = tl.constexpr(-(1 << 31))
HIGHEST = tl.constexpr((1 << 31) - 1)


# fmt: off
@jit
def order(logits: tl.tensor) -> tl.tensor:
    """Integers in the order of float32 numbers; both zeros are one."""
    bits = (logits + 0.0).to(tl.int32, bitcast=True)
    return tl.where(bits < 0, bits ^ 0x7FFFFFFF, bits)


@jit
def number(key: tl.tensor) -> tl.tensor:
    """The float32 number that `order` gave this integer."""
    return tl.where(key < 0, key ^ 0x7FFFFFFF, key).to(tl.float32, bitcast=True)


@jit
def weigh(logits: tl.tensor, best: tl.tensor, temperature: tl.tensor) -> tl.tensor:
    """A token's probability, relative to the best token's."""
    return tl.exp((logits - best) / temperature)


@jit
def search(
    line: tl.tensor, best: tl.tensor, temperature: tl.tensor, low: tl.tensor, high: tl.tensor,
    most: tl.tensor, limit: tl.tensor, SIZE: tl.constexpr, BLOCK: tl.constexpr,
) -> tl.tensor:
    """Finds the lowest key in (low, high] above which stand fewer than `most` tokens of less than `limit` weight.

    That key belongs to a token: the last one kept, or some of its equals. Returns it, with the number and the weight of
    the tokens above it.
    """
    above = 0
    weight = 0.0
    while low + 1 < high:
        # Halfway, without overflow.
        middle = (low >> 1) + (high >> 1) + (low & high & 1)
        count = tl.zeros([BLOCK], tl.int32)
        mass = tl.zeros([BLOCK], tl.float32)
        next_above = tl.full([BLOCK], HIGHEST, tl.int32)
        next_below = tl.full([BLOCK], LOWEST, tl.int32)
        for start in range(0, SIZE, BLOCK):
            token = start + tl.arange(0, BLOCK)
            logits = tl.load(line + token, mask=token < SIZE, other=float("-inf"))
            key = order(logits)
            over = (key > middle) & (token < SIZE)
            count += tl.where(over, 1, 0)
            mass += tl.where(over, weigh(logits, best, temperature), 0.0)
            next_above = tl.minimum(next_above, tl.where(over, key, HIGHEST))
            next_below = tl.maximum(next_below, tl.where(over, LOWEST, key))
        num_over = tl.sum(count, 0)
        total = tl.sum(mass, 0)
        kept = (num_over < most) & (total < limit)
        above = tl.where(kept, num_over, above)
        weight = tl.where(kept, total, weight)
        # No token stands between the middle and the next one: step over the gap.
        high = tl.where(kept, tl.max(next_below, 0), high)
        low = tl.where(kept, low, tl.min(next_above, 0) - 1)
    return high, above, weight


@jit
def sum_weights(
    line: tl.tensor, best: tl.tensor, temperature: tl.tensor, SIZE: tl.constexpr, BLOCK: tl.constexpr
) -> tl.tensor:
    """The weight of all tokens."""
    mass = tl.zeros([BLOCK], tl.float32)
    for start in range(0, SIZE, BLOCK):
        token = start + tl.arange(0, BLOCK)
        logits = tl.load(line + token, mask=token < SIZE, other=float("-inf"))
        mass += weigh(logits, best, temperature)
    return tl.sum(mass, 0)


@jit
def find_last(line: tl.tensor, key: tl.tensor, wanted: tl.tensor, SIZE: tl.constexpr, BLOCK: tl.constexpr) -> tl.tensor:
    """The token id of number `wanted`, in the order of ids, among those with this key; the largest id if fewer."""
    found = SIZE
    seen = 0
    for start in range(0, SIZE, BLOCK):
        token = start + tl.arange(0, BLOCK)
        logits = tl.load(line + token, mask=token < SIZE, other=float("-inf"))
        equal = tl.where((order(logits) == key) & (token < SIZE), 1, 0)
        rank = seen + tl.cumsum(equal, 0)
        hit = (equal > 0) & (rank == wanted)
        found = tl.minimum(found, tl.min(tl.where(hit, token, SIZE), 0))
        seen += tl.sum(equal, 0)
    return found


@jit
def cut_rows(
    logits: tl.tensor, index: tl.tensor, temperature: tl.tensor, top_k: tl.tensor, top_p: tl.tensor,
    peaks: tl.tensor, cuts: tl.tensor, row_stride: tl.tensor,
    SIZE: tl.constexpr, BLOCK: tl.constexpr, CHUNKS: tl.constexpr, BLOCK_CHUNKS: tl.constexpr,
) -> None:
    """Program n finds where row index[n] is cut: `cuts` [n] gets the key of the last token kept, and its id."""
    draw = tl.program_id(0)
    row = tl.load(index + draw)
    line = logits + row.to(tl.int64) * row_stride
    heat = tl.load(temperature + draw)
    keep = tl.load(top_k + draw)
    nucleus = tl.load(top_p + draw)
    chunk = tl.arange(0, BLOCK_CHUNKS)
    best = tl.max(tl.load(peaks + draw * CHUNKS + chunk, mask=chunk < CHUNKS, other=float("-inf")), 0)
    limited = (keep > 0) & (keep < SIZE)
    most = tl.where(limited, keep, SIZE + 1).to(tl.int32)
    highest = order(best)
    low = tl.minimum(highest, LOWEST)  # a value of its type, not a constant: the search changes it
    key = low
    above = 0
    weight = 0.0
    if limited:
        key, above, weight = search(line, best, heat, low, highest, most, float("inf"), SIZE, BLOCK)
        low = key - 1
    if nucleus < 1.0:
        if limited:
            total = weight + (most - above) * weigh(number(key), best, heat)  # of the tokens that top-k keeps
        else:
            total = sum_weights(line, best, heat, SIZE, BLOCK)
        key, above, weight = search(line, best, heat, low, highest, most, nucleus * total, SIZE, BLOCK)
        room = tl.ceil((nucleus * total - weight) / weigh(number(key), best, heat))
        most = tl.minimum(most, above + tl.minimum(room, SIZE).to(tl.int32))
    last = SIZE
    if (nucleus < 1.0) | limited:
        last = find_last(line, key, tl.maximum(most - above, 1), SIZE, BLOCK)
    tl.store(cuts + 2 * draw, key)
    tl.store(cuts + 2 * draw + 1, last)
# fmt: on
