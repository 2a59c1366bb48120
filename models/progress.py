"""Progress of long work on models, as a callback and as bars on a terminal."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

from tqdm import tqdm

TERMINAL_S, LOG_S = 0.1, 10.0  # between two states of a bar; a log keeps every one of them


class OnProgress(Protocol):
    """Is told how far a long piece of work has come."""

    def __call__(self, what: str, done: int, total: int) -> None:
        """`what` names the work and stays the same until `done` reaches `total`; both count bytes."""
        ...


def silent(what: str, done: int, total: int) -> None:
    """Tells nobody."""


@contextmanager
def bars() -> Iterator[OnProgress]:
    """Draws one bar on standard error for each piece of work; the last one is closed on leaving."""
    board = _Board()
    try:
        yield board.show
    finally:
        board.close()


class _Board:
    """Owns the bar that is drawn now."""

    def __init__(self) -> None:
        self._what = ""
        self._bar: tqdm | None = None

    def show(self, what: str, done: int, total: int) -> None:
        if self._bar is None or what != self._what:
            self.close()
            self._what = what
            self._bar = tqdm(
                desc=what,
                total=total,
                unit="B",
                unit_scale=True,
                unit_divisor=1024,
                dynamic_ncols=True,
                mininterval=TERMINAL_S if sys.stderr.isatty() else LOG_S,
            )
        self._bar.update(done - self._bar.n)
        if done >= total:
            self.close()

    def close(self) -> None:
        if self._bar is not None:
            self._bar.close()
        self._bar = None
