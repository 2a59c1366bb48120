"""What the values of flags may be; a wrong one is told in one sentence."""

import argparse
from collections.abc import Callable
from typing import TypeVar

_MAX_INT = 1 << 31

N = TypeVar("N", int, float)


def _number(kind: type[N], says: str, accepts: Callable[[N], bool]) -> Callable[[str], N]:
    def read(argument: str) -> N:
        try:
            value = kind(argument)
        except ValueError:
            value = None
        if isinstance(value, int) and value >= _MAX_INT:
            raise argparse.ArgumentTypeError(f"{argument!r} is too large: the limit is {_MAX_INT - 1}.")
        if value is None or not accepts(value):
            raise argparse.ArgumentTypeError(f"{argument!r} is not {says}.")
        return value

    return read


def text(argument: str) -> str:
    """A string that is not empty."""
    if not argument.strip() or "\0" in argument:
        raise argparse.ArgumentTypeError("the value is empty.")
    return argument


def names(argument: str) -> list[str]:
    """Names with commas between; may be given more than once."""
    return [text(name.strip()) for name in argument.split(",")]


positive = _number(int, "a whole number of at least 1", lambda n: 1 <= n < _MAX_INT)
natural = _number(int, "a whole number of at least 0", lambda n: 0 <= n < _MAX_INT)
minus_one = _number(int, "a whole number of at least -1", lambda n: -1 <= n < _MAX_INT)
chunk = _number(int, "a positive whole number, or -1 for whole prompts", lambda n: n == -1 or 1 <= n < _MAX_INT)
port = _number(int, "a port from 0 to 65535", lambda n: 0 <= n <= 65535)
fraction = _number(float, "a number above 0 and below 1", lambda x: 0 < x < 1)
share = _number(float, "a number above 0 and at most 1", lambda x: 0 < x <= 1)
above_zero = _number(float, "a number above 0", lambda x: 0 < x < float("inf"))
heat = _number(float, "a temperature from 0 to 2", lambda x: 0 <= x <= 2)
not_negative = _number(float, "a number of at least 0", lambda x: 0 <= x < float("inf"))
