"""Causal convolutions with carried windows: one token of each row, pieces of long rows, or rows of drafts."""

import triton.language as tl

from corymb.kernels.recurrence import GRID
from corymb.kernels.triton_activations import silu
from corymb.kernels.triton_jit import jit

PIECE = tl.constexpr(GRID)


# fmt: off
@jit
def convolve_tokens(
    x: tl.tensor, weight: tl.tensor, bias: tl.tensor, windows: tl.tensor, slots: tl.tensor, out: tl.tensor,
    x_stride: tl.tensor, window_stride: tl.tensor,
    CHANNELS: tl.constexpr, WIDTH: tl.constexpr, BLOCK: tl.constexpr, BIAS: tl.constexpr, SILU: tl.constexpr,
) -> None:
    """Program (t, b) computes a block of channels of token t, the only one of row t, and moves its window on."""
    token = tl.program_id(0).to(tl.int64)
    channel = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = channel < CHANNELS
    slot = tl.load(slots + token).to(tl.int64)
    kept = inside & (slot > 0)
    window = windows + slot * window_stride + channel
    total = tl.zeros([BLOCK], tl.float32)
    if BIAS:
        total += tl.load(bias + channel, mask=inside, other=0.0)
    for index in tl.static_range(WIDTH - 1):
        seen = tl.load(window + index * CHANNELS, mask=kept, other=0.0)
        total += seen.to(tl.float32) * tl.load(weight + index * CHANNELS + channel, mask=inside, other=0.0)
        if index > 0:
            tl.store(window + (index - 1) * CHANNELS, seen, mask=kept)
    new = tl.load(x + token * x_stride + channel, mask=inside, other=0.0)
    total += new.to(tl.float32) * tl.load(weight + (WIDTH - 1) * CHANNELS + channel, mask=inside, other=0.0)
    tl.store(window + (WIDTH - 2) * CHANNELS, new.to(windows.dtype.element_ty), mask=kept)
    if SILU:
        total = silu(total)
    tl.store(out + token * CHANNELS + channel, total.to(out.dtype.element_ty), mask=inside)


@jit
def convolve_pieces(
    x: tl.tensor, weight: tl.tensor, bias: tl.tensor, windows: tl.tensor, slots: tl.tensor, offsets: tl.tensor,
    piece_rows: tl.tensor, piece_firsts: tl.tensor, out: tl.tensor, x_stride: tl.tensor, window_stride: tl.tensor,
    CHANNELS: tl.constexpr, WIDTH: tl.constexpr, BLOCK: tl.constexpr, BIAS: tl.constexpr, SILU: tl.constexpr,
) -> None:
    """Program (p, b) computes a block of channels of piece p. Windows stay as they are: see `keep_windows`."""
    piece = tl.program_id(0)
    channel = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = (channel < CHANNELS)[None, :]
    row = tl.load(piece_rows + piece)
    begin = tl.load(offsets + row)
    token = tl.load(piece_firsts + piece) + tl.arange(0, PIECE)
    wanted = (token < tl.load(piece_firsts + piece + 1))[:, None] & inside
    slot = tl.load(slots + row).to(tl.int64)
    window = windows + slot * window_stride
    total = tl.zeros([PIECE, BLOCK], tl.float32)
    if BIAS:
        total += tl.load(bias + channel, mask=channel < CHANNELS, other=0.0)[None, :]
    for index in tl.static_range(WIDTH):
        source = token - begin - (WIDTH - 1) + index  # below zero: in the window
        place = (begin + source).to(tl.int64)[:, None] * x_stride + channel[None, :]
        seen = tl.load(x + place, mask=wanted & (source >= 0)[:, None], other=0.0).to(tl.float32)
        place = (source + WIDTH - 1)[:, None] * CHANNELS + channel[None, :]
        carried = wanted & (source < 0)[:, None] & (slot > 0)
        seen += tl.load(window + place, mask=carried, other=0.0).to(tl.float32)
        total += seen * tl.load(weight + index * CHANNELS + channel, mask=channel < CHANNELS, other=0.0)[None, :]
    if SILU:
        total = silu(total)
    place = token.to(tl.int64)[:, None] * CHANNELS + channel[None, :]
    tl.store(out + place, total.to(out.dtype.element_ty), mask=wanted)


@jit
def keep_windows(
    x: tl.tensor, windows: tl.tensor, slots: tl.tensor, offsets: tl.tensor, widths: tl.tensor,
    x_stride: tl.tensor, window_stride: tl.tensor,
    CHANNELS: tl.constexpr, WIDTH: tl.constexpr, BLOCK: tl.constexpr,
) -> None:
    """Program (r, b) leaves the last inputs of row r in its window, of which a short row keeps a part."""
    row = tl.program_id(0)
    channel = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    slot = tl.load(slots + row).to(tl.int64)
    inside = (channel < CHANNELS) & (slot > 0)
    width = tl.load(widths + row)
    window = windows + slot * window_stride + channel
    inputs = x + tl.load(offsets + row).to(tl.int64) * x_stride + channel
    for index in tl.static_range(WIDTH - 1):
        source = width - (WIDTH - 1) + index
        new = tl.load(inputs + source * x_stride, mask=inside & (source >= 0), other=0.0)
        # Later entries move to earlier places, so none is overwritten before it is read.
        old = tl.load(window + (index + width) * CHANNELS, mask=inside & (source < 0), other=0.0)
        kept = tl.where(source >= 0, new.to(windows.dtype.element_ty), old)
        tl.store(window + index * CHANNELS, kept, mask=inside)


@jit
def convolve_rows(
    x: tl.tensor, weight: tl.tensor, bias: tl.tensor, windows: tl.tensor, slots: tl.tensor, offsets: tl.tensor,
    widths: tl.tensor, marks: tl.tensor, mark_slots: tl.tensor, out: tl.tensor,
    x_stride: tl.tensor, window_stride: tl.tensor,
    CHANNELS: tl.constexpr, WIDTH: tl.constexpr, BLOCK: tl.constexpr, BIAS: tl.constexpr, SILU: tl.constexpr,
    MOVES: tl.constexpr, MARKS: tl.constexpr,
) -> None:
    """Program (r, b) takes a block of channels through all tokens of row r, as `convolve_tokens` would one by one.

    MOVES: the window behind the row is kept. MARKS: the window after marks[r] tokens goes to mark_slots[r].
    """
    row = tl.program_id(0)
    channel = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = channel < CHANNELS
    slot = tl.load(slots + row).to(tl.int64)
    kept = inside & (slot > 0)
    window = windows + slot * window_stride + channel
    first, width = tl.load(offsets + row).to(tl.int64), tl.load(widths + row)
    inputs = x + first * x_stride + channel
    nth = 0
    while nth < width:
        total = tl.zeros([BLOCK], tl.float32)
        if BIAS:
            total += tl.load(bias + channel, mask=inside, other=0.0)
        for index in tl.static_range(WIDTH):
            seen = look(inputs, window, nth, index, inside, kept, x_stride, CHANNELS, WIDTH)
            total += seen.to(tl.float32) * tl.load(weight + index * CHANNELS + channel, mask=inside, other=0.0)
        if SILU:
            total = silu(total)
        tl.store(out + (first + nth) * CHANNELS + channel, total.to(out.dtype.element_ty), mask=inside)
        nth += 1
    if MARKS:
        mark = tl.load(marks + row)
        if mark > 0:
            target = windows + tl.load(mark_slots + row).to(tl.int64) * window_stride + channel
            for index in tl.static_range(WIDTH - 1):
                passed = look(inputs, window, mark, index, inside, kept, x_stride, CHANNELS, WIDTH)
                tl.store(target + index * CHANNELS, passed.to(windows.dtype.element_ty), mask=kept)
    if MOVES:
        for index in tl.static_range(WIDTH - 1):
            # Later entries move to earlier places, so none is overwritten before it is read.
            left = look(inputs, window, width, index, inside, kept, x_stride, CHANNELS, WIDTH)
            tl.store(window + index * CHANNELS, left.to(windows.dtype.element_ty), mask=kept)


@jit
def look(
    inputs: tl.tensor, window: tl.tensor, nth: tl.tensor, index: tl.constexpr, inside: tl.tensor, kept: tl.tensor,
    x_stride: tl.tensor, CHANNELS: tl.constexpr, WIDTH: tl.constexpr,
) -> tl.tensor:
    """What a row's token `nth` sees at `index` of its window: an input of the row, or one from before it."""
    source = nth - (WIDTH - 1) + index
    new = tl.load(inputs + source * x_stride, mask=inside & (source >= 0), other=0.0)
    old = tl.load(window + (nth + index) * CHANNELS, mask=kept & (source < 0), other=0.0)
    return tl.where(source >= 0, new, old.to(new.dtype))
# fmt: on
