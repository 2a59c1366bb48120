"""Rules for JSON numbers within bounds, digit by digit.

Digits are limited so that every reader gets the number that was written: integers fit 64 bits, bounded decimals have at
most 15 significant digits (a double holds them), and exponents cannot overflow one.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from decimal import Decimal

from corymb.serve.rules import Rules, any_of

INTEGER = '("0" | "-"? [1-9] [0-9]{0,17})'
NUMBER = '("-"? ("0" | [1-9] [0-9]{0,14}) ("." [0-9]{1,15})? ([eE] [+\\u002d]? [0-9] [0-9]?)?)'
MAX_INTEGER = 10**18 - 1
MAX_DIGITS = 15
_USUAL_DIGITS = 9  # before the point, where a bound is missing and the other one has no more


class BadBounds(Exception):
    """Bounds that no number can be held to here; one sentence."""


@dataclass(frozen=True, slots=True)
class Bound:
    """An end of a range."""

    value: Decimal
    open: bool = False  # the value itself is outside


def integer_rule(rules: Rules, low: Bound | None, high: Bound | None) -> str | None:
    """Integers within bounds; None where there is none. Raises BadBounds, TooComplex."""
    if low is None and high is None:
        return rules.add(INTEGER)
    least = -MAX_INTEGER if low is None else _above(low)
    most = MAX_INTEGER if high is None else -_above(Bound(-high.value, high.open))
    least, most = max(least, -MAX_INTEGER), min(most, MAX_INTEGER)
    if least > most:
        return None
    parts = []
    if least < 0:
        parts.append('"-" ' + any_of(list(_between(max(1, -most), -least))))
    if most >= 0:
        parts.append(any_of(list(_between(max(0, least), most))))
    return rules.add(any_of(parts))


def number_rule(rules: Rules, low: Bound | None, high: Bound | None) -> str | None:
    """Numbers within bounds; None where there is none. Raises BadBounds, TooComplex."""
    if low is None and high is None:
        return rules.add(NUMBER)
    low = low or Bound(-_far(high))
    high = high or Bound(_far(low))
    if low.value > high.value or (low.value == high.value and (low.open or high.open)):
        return None
    room = MAX_DIGITS - max(_num_whole(low.value), _num_whole(high.value))
    if max(_num_fraction(low.value), _num_fraction(high.value)) > room or room < 0:
        raise BadBounds(f"bounds of more than {MAX_DIGITS} digits cannot be followed")
    parts = []
    if low.value < 0:
        near = Bound(-high.value, high.open) if high.value < 0 else Bound(Decimal(0), open=True)
        parts += [f'"-" {one}' for one in _decimals(near, Bound(-low.value, low.open), room)]
    if high.value >= 0:
        start = low if low.value >= 0 else Bound(Decimal(0))
        parts += list(_decimals(start, high, room))
    return rules.add(any_of(parts)) if parts else None


def multiple_rule(rules: Rules, divisor: int) -> str:
    """Integers that `divisor` divides: a rule for each remainder. Raises TooComplex."""
    names = [rules.name() for _ in range(divisor)]
    for remainder, name in enumerate(names):
        following = [f'"{digit}" {names[(remainder * 10 + digit) % divisor]}' for digit in range(10)]
        rules.define(name, " | ".join(['""', *following] if remainder == 0 else following))
    first = [f'"{digit}" {names[digit % divisor]}' for digit in range(1, 10)]
    return rules.add(f'("0" | "-"? ({" | ".join(first)}))')


def _far(other: Bound | None) -> Decimal:
    """How far numbers go on the side where there is no bound."""
    assert other is not None, "one of two bounds is there"
    digits = max(_USUAL_DIGITS, min(_num_whole(other.value) + 1, MAX_DIGITS))
    return Decimal(10**digits - 1)


def _above(bound: Bound) -> int:
    """The smallest integer inside a lower bound."""
    whole = int(bound.value.to_integral_value(rounding="ROUND_CEILING"))
    return whole + 1 if bound.open and whole == bound.value else whole


def _between(least: int, most: int) -> Iterator[str]:
    """Integers in [least, most], neither negative, without leading zeros."""
    for num_digits in range(len(str(least)), len(str(most)) + 1):
        low = max(least, 10 ** (num_digits - 1) if num_digits > 1 else 0)
        yield from _same_length(str(low), str(min(most, 10**num_digits - 1)))


def _same_length(low: str, high: str) -> Iterator[str]:
    """Digit strings in [low, high], all as long as these."""
    same = next((i for i, (a, b) in enumerate(zip(low, high, strict=True)) if a != b), len(low))
    start = f'"{low[:same]}" ' if same else ""
    if same == len(low):
        yield f'"{low}"'
        return
    first, last, rest = int(low[same]), int(high[same]), len(low) - same - 1
    low_rest, high_rest = low[same + 1 :], high[same + 1 :]
    if set(low_rest) - {"0"}:
        tails = any_of(list(_same_length(low_rest, "9" * rest)))
        yield f'{start}"{first}" {tails}'
        first += 1
    upper = None
    if set(high_rest) - {"9"}:
        upper = f'{start}"{last}" {any_of(list(_same_length("0" * rest, high_rest)))}'
        last -= 1
    if first <= last:
        yield f"{start}[{first}-{last}]" + (f" [0-9]{{{rest}}}" if rest else "")
    if upper is not None:
        yield upper


def _decimals(low: Bound, high: Bound, room: int) -> Iterator[str]:
    """Decimals between two bounds, neither negative, with up to `room` digits after the point."""
    floor, ceiling = int(low.value), int(high.value)
    low_digits, high_digits = _fraction(low.value), _fraction(high.value)
    if floor == ceiling:
        yield from (f'"{floor}" {one}' for one in _fractions(low_digits, high_digits, low.open, high.open, room))
        return
    yield from (f'"{floor}" {one}' for one in _fractions(low_digits, None, low.open, False, room))
    if floor + 1 <= ceiling - 1:
        yield any_of(list(_between(floor + 1, ceiling - 1))) + _any_fraction(room)
    yield from (f'"{ceiling}" {one}' for one in _fractions("", high_digits, False, high.open, room))


def _fractions(low: str, high: str | None, low_open: bool, high_open: bool, room: int) -> Iterator[str]:
    """What may follow the whole part: ".", then digits that as a fraction lie between `low` and `high` (None: 1)."""
    if not low and not low_open and (high is None or not (high == "" and high_open)):
        yield '""'
    if not room:
        return
    whole_low = low.ljust(room, "0")
    whole_high = "9" * room if high is None else high.ljust(room, "0")
    least = int(whole_low) + (1 if low_open else 0)
    most = int(whole_high) - (1 if high is not None and high_open else 0)
    if least <= most:
        yield '"." ' + any_of(list(_same_length(str(least).rjust(room, "0"), str(most).rjust(room, "0"))))
        yield from _shorter(low, high, low_open, high_open, room)


def _shorter(low: str, high: str | None, low_open: bool, high_open: bool, room: int) -> Iterator[str]:
    """The same with one to three digits, as people write them."""
    for num_digits in range(1, min(room, 4)):
        scale = 10 ** (room - num_digits)
        least = -(-(int(low.ljust(room, "0")) + (1 if low_open else 0)) // scale)
        top = 10**room - 1 if high is None else int(high.ljust(room, "0")) - (1 if high_open else 0)
        most = top // scale
        if least <= most:
            yield '"." ' + any_of(
                list(_same_length(str(least).rjust(num_digits, "0"), str(most).rjust(num_digits, "0")))
            )


def _any_fraction(room: int) -> str:
    return f' ("." [0-9]{{1,{room}}})?' if room else ""


def _fraction(value: Decimal) -> str:
    return f"{abs(value):f}".partition(".")[2].rstrip("0")


def _num_whole(value: Decimal) -> int:
    return len(str(abs(int(value))))


def _num_fraction(value: Decimal) -> int:
    return len(_fraction(value))
