"""Choosing tokens in three launches: the best of every chunk of a row, a race in every chunk, the winners' winner."""

import triton.language as tl

from corymb.kernels.triton_cut import order, weigh
from corymb.kernels.triton_jit import jit
from corymb.kernels.triton_noise import exponential


# fmt: off
@jit
def best_of(scores: tl.tensor, token: tl.tensor, SIZE: tl.constexpr) -> tl.tensor:
    """The best score and its token id, the lowest among equals."""
    top = tl.max(scores, 0)
    return top, tl.min(tl.where(scores == top, token, SIZE - 1), 0)


@jit
def peak_chunks(
    logits: tl.tensor, index: tl.tensor, peaks: tl.tensor, winners: tl.tensor, row_stride: tl.tensor,
    SIZE: tl.constexpr, BLOCK: tl.constexpr, CHUNKS: tl.constexpr, INDEXED: tl.constexpr, EARLY: tl.constexpr,
) -> None:
    """Program (n, c) finds the best logit of chunk c of row index[n]; NaN where the chunk holds one."""
    if EARLY:
        tl.extra.cuda.gdc_wait()
        tl.extra.cuda.gdc_launch_dependents()
    draw = tl.program_id(0)
    chunk = tl.program_id(1)
    row = tl.load(index + draw).to(tl.int64) if INDEXED else draw.to(tl.int64)
    token = chunk * BLOCK + tl.arange(0, BLOCK)
    scores = tl.load(logits + row * row_stride + token, mask=token < SIZE, other=float("-inf")).to(tl.float32)
    broken = tl.max(tl.where(scores != scores, 1, 0), 0)  # noqa: PLR0124  # only NaN differs from itself
    top, token_id = best_of(tl.where(scores != scores, float("-inf"), scores), token, SIZE)  # noqa: PLR0124
    tl.store(peaks + draw * CHUNKS + chunk, tl.where(broken > 0, float("nan"), top))
    tl.store(winners + draw * CHUNKS + chunk, token_id)


@jit
def race_chunks(
    logits: tl.tensor, index: tl.tensor, temperature: tl.tensor, min_p: tl.tensor, keys: tl.tensor,
    peaks: tl.tensor, cuts: tl.tensor, scores: tl.tensor, winners: tl.tensor, row_stride: tl.tensor,
    SIZE: tl.constexpr, BLOCK: tl.constexpr, CHUNKS: tl.constexpr, BLOCK_CHUNKS: tl.constexpr,
    FILTERED: tl.constexpr, PORTABLE: tl.constexpr,
) -> None:
    """Program (n, c) races the tokens of chunk c of row index[n]: the largest log(p ÷ E) wins."""
    draw = tl.program_id(0)
    chunk = tl.program_id(1)
    row = tl.load(index + draw).to(tl.int64)
    every_chunk = tl.arange(0, BLOCK_CHUNKS)
    best = tl.max(tl.load(peaks + draw * CHUNKS + every_chunk, mask=every_chunk < CHUNKS, other=float("-inf")), 0)
    heat = tl.load(temperature + draw)
    token = chunk * BLOCK + tl.arange(0, BLOCK)
    value = tl.load(logits + row * row_stride + token, mask=token < SIZE, other=float("-inf")).to(tl.float32)
    noise = exponential(tl.load(keys + 2 * draw), tl.load(keys + 2 * draw + 1), token, PORTABLE)
    score = (value - best) / heat - tl.log(noise)
    kept = (weigh(value, best, heat) >= tl.load(min_p + draw)) & (token < SIZE)
    if FILTERED:
        last_key = tl.load(cuts + 2 * draw)
        last_token = tl.load(cuts + 2 * draw + 1)
        key = order(value)
        kept &= (key > last_key) | ((key == last_key) & (token <= last_token))
    top, token_id = best_of(tl.where(kept, score, float("-inf")), token, SIZE)
    tl.store(scores + draw * CHUNKS + chunk, top)
    tl.store(winners + draw * CHUNKS + chunk, token_id)


@jit
def join_chunks(
    scores: tl.tensor, winners: tl.tensor, index: tl.tensor, token_ids: tl.tensor, usable: tl.tensor,
    CHUNKS: tl.constexpr, BLOCK_CHUNKS: tl.constexpr, INDEXED: tl.constexpr, CHECKED: tl.constexpr,
    EARLY: tl.constexpr,
) -> None:
    """Program n joins the chunks of row index[n]: its winner and, with CHECKED, whether its best logit is finite."""
    if EARLY:
        tl.extra.cuda.gdc_wait()
        tl.extra.cuda.gdc_launch_dependents()
    draw = tl.program_id(0)
    row = tl.load(index + draw).to(tl.int64) if INDEXED else draw.to(tl.int64)
    chunk = tl.arange(0, BLOCK_CHUNKS)
    score = tl.load(scores + draw * CHUNKS + chunk, mask=chunk < CHUNKS, other=float("-inf"))
    token = tl.load(winners + draw * CHUNKS + chunk, mask=chunk < CHUNKS, other=2147483647)
    broken = tl.max(tl.where(score != score, 1, 0), 0)  # noqa: PLR0124  # only NaN differs from itself
    score = tl.where(score != score, float("-inf"), score)  # noqa: PLR0124
    top = tl.max(score, 0)
    tl.store(token_ids + row, tl.min(tl.where(score == top, token, 2147483647), 0).to(tl.int64))
    if CHECKED:
        finite = (tl.abs(top) < float("inf")) & (broken == 0)
        tl.store(usable + row, finite)
# fmt: on
