"""Digests of plans, to find the first step in which two ranks part."""

import dataclasses
import hashlib
from collections.abc import Callable, Sequence
from typing import Any

import msgspec
import numpy as np

from corymb.scheduler.plan import StepPlan
from corymb.scheduler.turns import OutOfStep

DIGEST_BYTES = 8
FIELDS = tuple(field.name for field in dataclasses.fields(StepPlan))

Exchange = Callable[[bytes], Sequence[bytes]]  # gives what every rank gave, by rank


class Agreement:
    """Compares every turn's plan over all ranks before anything of it is launched."""

    def __init__(self, exchange: Exchange, rank: int) -> None:
        self._exchange = exchange
        self._rank = rank
        self._turn = 0

    def __call__(self, plan: StepPlan | None) -> None:
        """Raises OutOfStep, on every rank, when any rank plans something else."""
        own = digests(plan)
        for rank, theirs in enumerate(self._exchange(own)):
            if theirs != own:
                raise OutOfStep(_difference(self._turn, (self._rank, own), (rank, theirs)))
        self._turn += 1


def no_check(_: StepPlan | None) -> None:
    """Takes every plan for agreed."""


def digests(plan: StepPlan | None) -> bytes:
    """One digest a field; all zeros where nothing is planned."""
    if plan is None:
        return bytes(DIGEST_BYTES * len(FIELDS))
    return b"".join(digest(getattr(plan, name)) for name in FIELDS)


def digest(value: object) -> bytes:
    """Of all that a value holds."""
    whole = hashlib.blake2b(digest_size=DIGEST_BYTES)
    _feed(whole, value)
    return whole.digest()


def _feed(whole: Any, value: object) -> None:
    if isinstance(value, np.ndarray):
        whole.update(f"{value.dtype}{value.shape}".encode())
        whole.update(np.ascontiguousarray(value).tobytes())
    elif dataclasses.is_dataclass(value):
        for field in dataclasses.fields(value):
            _feed(whole, getattr(value, field.name))
    elif isinstance(value, msgspec.Struct):
        whole.update(msgspec.msgpack.encode(value))
    elif isinstance(value, list | tuple):
        whole.update(f"[{len(value)}]".encode())
        for item in value:
            _feed(whole, item)
    else:
        whole.update(repr(value).encode())


def _difference(turn: int, own: tuple[int, bytes], other: tuple[int, bytes]) -> str:
    (low, mine), (high, theirs) = sorted((own, other))
    first = next(index for index, _ in enumerate(FIELDS) if _part(mine, index) != _part(theirs, index))
    return (
        f"Ranks {low} and {high} plan different steps in turn {turn}: their plans first differ in {FIELDS[first]!r}, "
        f"whose digests are {_shown(_part(mine, first))} and {_shown(_part(theirs, first))}."
    )


def _part(whole: bytes, index: int) -> bytes:
    return whole[index * DIGEST_BYTES : (index + 1) * DIGEST_BYTES]


def _shown(digest: bytes) -> str:
    return digest.hex() if any(digest) else "nothing"
