"""Planned failures of child processes, for tests: `PROCESS.ACTION=VALUE`, off unless a flag names them."""

import os
import re
import time
from typing import Literal, get_args

import msgspec

Action = Literal[
    "die_at_step",
    "hang_at_step",
    "raise_at_step",
    "slow_step_s",
    "slow_start_s",
    "fail_start",
    "lose_message",
    "slow_read_s",
    "slow_write_s",
]
_PROCESS = re.compile(r"detokenizer|scheduler(-\d+)?")


class FailpointError(RuntimeError):
    """A failpoint struck."""


class Failpoint(msgspec.Struct, frozen=True):
    """One planned failure."""

    process: str  # "detokenizer", "scheduler-1"; "scheduler" is rank 0's
    action: Action
    value: float


def parse_failpoint(text: str) -> Failpoint:
    """Reads one failpoint. Raises ValueError with a sentence."""
    name, _, value = text.partition("=")
    process, _, action = name.partition(".")
    if _PROCESS.fullmatch(process) and action in get_args(Action):
        try:
            return Failpoint(process, action, float(value))  # type: ignore[arg-type]
        except ValueError:
            pass
    actions = ", ".join(get_args(Action))
    raise ValueError(
        f"--test-failpoint {text!r}: write PROCESS.ACTION=NUMBER with scheduler, scheduler-RANK or detokenizer, "
        f"and {actions}."
    )


class Failpoints:
    """The failpoints of one process."""

    def __init__(self, process: str, failpoints: tuple[Failpoint, ...]) -> None:
        """`process`: its name, and "scheduler" is another name of "scheduler-0"."""
        names = {process, process.removesuffix("-0")}
        own = [point for point in failpoints if point.process in names]
        self._values: dict[Action, float] = {point.action: point.value for point in own}
        self._steps = 0

    @property
    def any(self) -> bool:
        """Whether there is one."""
        return bool(self._values)

    @property
    def lost_message(self) -> int:
        """The number of the message that never arrives; 0 for none."""
        return int(self._values.get("lose_message", 0))

    @property
    def slow_files(self) -> tuple[float, float]:
        """Seconds that reading and writing a file of the cache takes longer."""
        return self._values.get("slow_read_s", 0.0), self._values.get("slow_write_s", 0.0)

    def at_start(self) -> None:
        """Called once, before the process reports that it is ready."""
        time.sleep(self._values.get("slow_start_s", 0.0))
        if "fail_start" in self._values:
            raise FailpointError("The start-up failed on request (--test-failpoint).")

    def at_step(self) -> None:
        """Called before every step."""
        if not self._values:
            return
        self._steps += 1
        if self._steps == self._values.get("die_at_step"):
            os._exit(9)
        if self._steps == self._values.get("raise_at_step"):
            raise FailpointError("A step failed on request (--test-failpoint).")
        if self._steps == self._values.get("hang_at_step"):
            time.sleep(1e6)
        time.sleep(self._values.get("slow_step_s", 0.0))
