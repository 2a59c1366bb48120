"""What rank 0 tells the other ranks, so that every one of them plans the same steps.

A rank's turn of the loop is a function of what came before it, the messages, the time and the results; rank 0 sends all
three. In order: the messages of a turn, its `Turn`, and then the `Result` of every step that rank 0 waits for in it.
"""

import numpy as np

from corymb.scheduler.messages import Logprob, Message, ToScheduler
from corymb.scheduler.plan import Drafted, Int32, Sampled


class OutOfStep(RuntimeError):
    """This rank does not do what rank 0 does."""


class Turn(Message, frozen=True):
    """All messages of a turn have been sent."""

    number: int
    now_s: float  # rank 0's clock


class Speculated(Message, frozen=True, kw_only=True):
    """What of a step of drafts later budgets depend on."""

    num_verified: bytes  # int32 little-endian
    num_allowed: bytes | None
    confidence: bytes | None  # float32 little-endian
    draft_s: float
    verify_s: float


class Result(Message, frozen=True, kw_only=True):
    """What a step gave: all of it that later plans depend on. Times too: budgets of drafts go by them."""

    step: int
    token_ids: bytes  # int32 little-endian
    counts: bytes
    forward_s: float
    prompt_logprobs: dict[int, list[Logprob]]
    errors: dict[int, str]
    drafted: Speculated | None


ToFollower = ToScheduler | Turn | Result


def result_of(step: int, sampled: Sampled) -> Result:
    """For sending."""
    return Result(
        step=step,
        token_ids=_packed(sampled.token_ids),
        counts=_packed(sampled.counts),
        forward_s=sampled.forward_s,
        prompt_logprobs=sampled.prompt_logprobs,
        errors=sampled.errors,
        drafted=None if sampled.drafted is None else _speculated(sampled.drafted),
    )


def sampled_of(result: Result) -> Sampled:
    """As received."""
    return Sampled(
        token_ids=_unpacked(result.token_ids),
        counts=_unpacked(result.counts),
        forward_s=result.forward_s,
        prompt_logprobs=result.prompt_logprobs,
        errors=result.errors,
        drafted=None if result.drafted is None else _drafted(result.drafted),
    )


def _speculated(drafted: Drafted) -> Speculated:
    allowed, confidence = drafted.num_allowed, drafted.confidence
    return Speculated(
        num_verified=_packed(drafted.num_verified),
        num_allowed=None if allowed is None else _packed(allowed),
        confidence=None if confidence is None else confidence.astype("<f4").tobytes(),
        draft_s=drafted.draft_s,
        verify_s=drafted.verify_s,
    )


def _drafted(given: Speculated) -> Drafted:
    num_verified, confidence = _unpacked(given.num_verified), None
    if given.confidence is not None:
        confidence = np.frombuffer(given.confidence, "<f4").astype(np.float32).reshape(len(num_verified), -1)
    allowed = None if given.num_allowed is None else _unpacked(given.num_allowed)
    return Drafted(num_verified, confidence, given.draft_s, given.verify_s, allowed)


def _packed(numbers: Int32) -> bytes:
    return numbers.astype("<i4").tobytes()


def _unpacked(packed: bytes) -> Int32:
    return np.frombuffer(packed, "<i4").astype(np.int32)


class TurnClock:
    """The time of a turn: the same through the turn, and on every rank."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        """Seconds, of rank 0's monotonic clock."""
        return self.now_s
