"""How many of a CPU's threads a step gets. No bit of a result depends on it, so it is measured.

A step of few tokens waits for the weights, which one core may read as fast as all of them; then further threads only
cost their waking up, some hundred times a step.
"""

import time
from collections.abc import Callable

import torch

NARROW_TOKENS = (1, 2, 4, 8)
REPEATS = 4


class Threads:
    """Sets the number of threads before a step; used by the one thread that runs steps."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._narrow = 0  # up to so many tokens, one thread is faster

    def prepare(self, num_tokens: int) -> None:
        """Sets what a step of so many tokens gets."""
        self._set(1 if num_tokens <= self._narrow else self._most)

    def measure(self, run: Callable[[int], None]) -> None:
        """Learns up to how many tokens one thread is faster. `run(n)` runs a step of n tokens."""
        self._narrow = 0
        if self._most == 1:
            return
        for num_tokens in NARROW_TOKENS:
            alone, together = (self._fastest_s(run, num_tokens, threads) for threads in (1, self._most))
            if together < alone:
                break
            self._narrow = num_tokens

    def _fastest_s(self, run: Callable[[int], None], num_tokens: int, threads: int) -> float:
        self._set(threads)
        times = []
        for _ in range(REPEATS):
            begun_s = time.perf_counter()
            run(num_tokens)
            times.append(time.perf_counter() - begun_s)
        return min(times)

    @staticmethod
    def _set(threads: int) -> None:
        if torch.get_num_threads() != threads:
            torch.set_num_threads(threads)
