"""The start-up on the terminal: one line a stage, with its seconds."""

import re
import sys
import time
from collections.abc import Iterable
from typing import TextIO

from corymb.scheduler.messages import Stage

_FURTHER_RANK = re.compile(r"scheduler-[1-9]\d*")


class Timeline:
    """Prints stages as they end, and knows which ones are still running."""

    def __init__(self, out: TextIO = sys.stderr) -> None:
        self._out = out
        self._begun_s = time.monotonic()
        self._running: dict[tuple[str, str], float] = {}

    @property
    def elapsed_s(self) -> float:
        """Since the start."""
        return time.monotonic() - self._begun_s

    def stage(self, stage: Stage) -> None:
        """A process begins or ends a stage."""
        key = (stage.process, stage.name)
        if stage.seconds is None:
            self._running[key] = time.monotonic()
            return
        self._running.pop(key, None)
        if not _FURTHER_RANK.fullmatch(stage.process):  # they do what rank 0 does
            self.line(stage.name, stage.seconds, stage.detail)

    def line(self, name: str, seconds: float, detail: str) -> None:
        """Prints one stage; further lines of the detail stand below the first."""
        first, *others = detail.split("\n")
        print(f"  {name:<12}{seconds:7.2f} s  {first}".rstrip(), file=self._out)
        for line in others:
            print(f"{'':24}{line}", file=self._out)
        self._out.flush()

    def late(self, waited_for: Iterable[str]) -> str:
        """What the processes that are not ready do, for a sentence."""
        now_s = time.monotonic()
        stages = {
            process: f" in {name!r} for {now_s - since:.0f} s" for (process, name), since in self._running.items()
        }
        return ", ".join(f"{process}{stages.get(process, ' has not reported yet')}" for process in waited_for)

    def ready(self, url: str, model: str) -> None:
        """Prints where the server is and how to ask it something."""
        print(
            f"  {'ready':<12}{self.elapsed_s:7.2f} s  {model} on {url}\n\n"
            f"  curl {url}/v1/chat/completions -H 'Content-Type: application/json' \\\n"
            """    -d '{"messages": [{"role": "user", "content": "What is a corymb?"}], "max_tokens": 64}'\n""",
            file=self._out,
            flush=True,
        )
