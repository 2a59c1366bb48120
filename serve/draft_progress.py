"""How far a long command is: a bar on a terminal, a line every few seconds anywhere else."""

import sys
import time
from collections.abc import Callable
from typing import TextIO

from corymb.models.progress import Board
from corymb.speculative.training_run import OnProgress

EVERY_S = 10.0


class Lines:
    """Prints a line when a piece of work begins, ends, and every so often between."""

    def __init__(self, out: TextIO, clock: Callable[[], float] = time.monotonic) -> None:
        self._out = out
        self._clock = clock
        self._what = ""
        self._due_s = 0.0

    def __call__(self, what: str, done: int, total: int, detail: str = "") -> None:
        """See speculative.training_run.OnProgress."""
        now_s = self._clock()
        if what == self._what and done < total and now_s < self._due_s:
            return
        self._what, self._due_s = what, now_s + EVERY_S
        print(f"{what}: {done:,} of {total:,}" + (f", {detail}" if detail else ""), file=self._out, flush=True)


def progress(out: TextIO = sys.stderr) -> OnProgress:
    """What suits the stream."""
    return Board(file=out).show if out.isatty() else Lines(out)
