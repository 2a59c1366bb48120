"""What rank 0 tells the other ranks, so that every one of them plans the same steps.

A rank's turn of the loop is a function of what came before it, the messages, the time and the results; rank 0 sends all
three. In order: the messages of a turn, its `Turn`, and then the `Result` of every step that rank 0 waits for in it.
"""

import numpy as np

from corymb.scheduler.messages import Logprob, Message, ToScheduler
from corymb.scheduler.plan import Sampled


class OutOfStep(RuntimeError):
    """This rank does not do what rank 0 does."""


class Turn(Message, frozen=True):
    """All messages of a turn have been sent."""

    number: int
    now_s: float  # rank 0's clock


class Result(Message, frozen=True, kw_only=True):
    """What a step gave: all of it that later plans depend on."""

    step: int
    token_ids: bytes  # int32 little-endian
    counts: bytes
    prompt_logprobs: dict[int, list[Logprob]]
    errors: dict[int, str]


ToFollower = ToScheduler | Turn | Result


def result_of(step: int, sampled: Sampled) -> Result:
    """For sending."""
    return Result(
        step=step,
        token_ids=sampled.token_ids.astype("<i4").tobytes(),
        counts=sampled.counts.astype("<i4").tobytes(),
        prompt_logprobs=sampled.prompt_logprobs,
        errors=sampled.errors,
    )


def sampled_of(result: Result, forward_s: float) -> Sampled:
    """As received."""
    return Sampled(
        token_ids=np.frombuffer(result.token_ids, "<i4").astype(np.int32),
        counts=np.frombuffer(result.counts, "<i4").astype(np.int32),
        forward_s=forward_s,
        prompt_logprobs=result.prompt_logprobs,
        errors=result.errors,
    )


class TurnClock:
    """The time of a turn: the same through the turn, and on every rank."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        """Seconds, of rank 0's monotonic clock."""
        return self.now_s
