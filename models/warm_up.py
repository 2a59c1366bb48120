"""The first steps of a runner: they meet every kernel once, so that no request waits for it, or fails on it."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from corymb.cache.writes import Landmarks, StateWrites
from corymb.models.config import DecoderConfig
from corymb.scheduler.messages import Sampling
from corymb.scheduler.plan import LAST_SAMPLED, Masks, Opened, Runner, StepPlan, Windows

_PADDING_ROW = 0  # nobody reads its table entries, nor slot 0


SHORT = (2,)
# A GPU has kernels of its own for rows of one, few, some and many tokens, and for every way of sampling.
EVERY_WIDTH = (2, 12, 64)
# Of tokens that share experts or latents: up to so many the kernels differ, by the number of experts and heads.
MANY = (300, 1100, 2200)
GREEDY = Sampling(max_new_tokens=2, temperature=0.0)
EVERY_SAMPLING = (GREEDY, Sampling(max_new_tokens=2), Sampling(max_new_tokens=2, top_k=5, top_p=0.9))


def widths_up_to(longest: int, decoder: DecoderConfig | None) -> list[int]:
    """Of the first steps of a GPU."""
    many = MANY if decoder and (decoder.experts or decoder.latent) else ()
    return [width for width in (*EVERY_WIDTH, *many) if width <= longest]


def warm_up(runner: Runner, widths: Sequence[int] = SHORT, samplings: Sequence[Sampling] = (GREEDY,)) -> None:
    """Runs prompts of these widths and a decode behind each, on the padding row. Raises what the steps raise."""
    for width in widths:
        for sampling in samplings if width == widths[0] else samplings[:1]:
            prompt = runner.launch(padding_step(width, sampling))
            decode = runner.launch(_plan(np.array([LAST_SAMPLED]), width, []))
            prompt.wait()
            decode.wait()


def warm_up_masks(runner: Runner, vocab_size: int) -> None:
    """Runs a prompt whose token a mask decides, on the padding row. Raises what the step raises."""
    only = np.zeros(1, np.int32)
    step = runner.launch(replace(padding_step(SHORT[0]), constrained=only))
    step.constrain(Masks(only, np.full((1, -(-vocab_size // 32)), -1, np.int32)))
    step.wait()


def warm_up_windows(runner: Runner, num_drafts: int, samplings: Sequence[Sampling] = EVERY_SAMPLING) -> None:
    """Runs, for every way of sampling, a step that drafts and one that does not, on the padding row."""
    for sampling in samplings:
        steps = [runner.launch(padding_step(SHORT[0], sampling))]
        steps += [runner.launch(padding_windows(1, most)) for most in (num_drafts, 0)]
        for step in steps:
            step.wait()


def padding_windows(num_rows: int, most: int) -> StepPlan:
    """A step of the padding row, so many times over, behind a prompt of `SHORT`: nobody reads what it writes."""
    zeros = np.zeros(num_rows, np.int32)
    decode = _plan(np.array([LAST_SAMPLED] * num_rows), SHORT[0], [])
    return replace(
        decode,
        rows=zeros,
        widths=np.ones(num_rows, np.int32),
        starts=np.full(num_rows, SHORT[0], np.int32),
        slots=zeros[:0],
        samples=np.ones(num_rows, np.bool_),
        num_outputs=np.ones(num_rows, np.int32),
        states=StateWrites.only(zeros, Landmarks(zeros, zeros)),
        windows=Windows(np.full(num_rows, most, np.int32), None, zeros, zeros),
    )


def padding_step(width: int, sampling: Sampling = GREEDY) -> StepPlan:
    """A prompt of `width` tokens on the padding row."""
    prompt_ids = np.zeros(width, np.int32)
    return _plan(prompt_ids, 0, [Opened(_PADDING_ROW, prompt_ids, prompt_ids[:0], sampling, None)])


def _plan(token_ids: np.ndarray[tuple[int], np.dtype[np.int32]], start: int, opened: list[Opened]) -> StepPlan:
    width = len(token_ids)
    return StepPlan(
        step=0,
        rows=np.array([_PADDING_ROW], np.int32),
        widths=np.array([width], np.int32),
        starts=np.array([start], np.int32),
        token_ids=token_ids.astype(np.int32),
        slots=np.zeros(width, np.int32),
        samples=np.ones(1, np.bool_),
        num_outputs=np.array([1 if start else 0], np.int32),
        states=StateWrites.only(np.zeros(1, np.int32)),
        opened=opened,
    )
