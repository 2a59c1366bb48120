"""How far a long command is: a bar on a terminal, a line every few seconds anywhere else."""

import sys
import time
from collections.abc import Callable
from typing import TextIO

from tqdm import tqdm

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


class Bars:
    """Draws one bar for each piece of work."""

    def __init__(self, out: TextIO) -> None:
        self._out = out
        self._what = ""
        self._bar: tqdm | None = None

    def __call__(self, what: str, done: int, total: int, detail: str = "") -> None:
        """See speculative.training_run.OnProgress."""
        if self._bar is None or what != self._what:
            self.close()
            self._what = what
            self._bar = tqdm(desc=what, total=total, file=self._out, dynamic_ncols=True)
        self._bar.set_postfix_str(detail, refresh=False)
        self._bar.update(done - self._bar.n)
        if done >= total:
            self.close()

    def close(self) -> None:
        """Leaves the bar as it is."""
        if self._bar is not None:
            self._bar.close()
        self._bar, self._what = None, ""


def progress(out: TextIO = sys.stderr) -> Lines | Bars:
    """What suits the stream."""
    return Bars(out) if out.isatty() else Lines(out)
