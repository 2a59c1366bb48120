"""Progress of long work on models, as a callback and as bars on a terminal."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Protocol

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
    board = Board(
        unit="B", unit_scale=True, unit_divisor=1024, mininterval=TERMINAL_S if sys.stderr.isatty() else LOG_S
    )
    try:
        yield board.show
    finally:
        board.close()


class Board:
    """Owns the bar that is drawn now: one for each piece of work."""

    def __init__(self, **looks: Any) -> None:
        """`looks`: what tqdm is told of every bar."""
        self._looks = looks
        self._what = ""
        self._bar: tqdm | None = None

    def show(self, what: str, done: int, total: int, detail: str = "") -> None:
        """Draws how far a piece of work is; `detail` stands behind."""
        if self._bar is None or what != self._what:
            self.close()
            self._what = what
            self._bar = tqdm(desc=what, total=total, dynamic_ncols=True, **self._looks)
        if detail:
            self._bar.set_postfix_str(detail, refresh=False)
        self._bar.update(done - self._bar.n)
        if done >= total:
            self.close()

    def close(self) -> None:
        """Leaves the bar as it is."""
        if self._bar is not None:
            self._bar.close()
        self._bar = None
