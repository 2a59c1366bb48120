"""Grammar rules in GBNF, written from parts."""

from collections.abc import Callable, Sequence
from functools import lru_cache

Ranges = tuple[tuple[int, int], ...]  # code points, inclusive, ascending, apart

ALL: Ranges = ((0, 0xD7FF), (0xE000, 0x10FFFF))  # halves of surrogate pairs are no characters
MAX_RULES_BYTES = 1 << 20
_HYPHEN: Ranges = ((0x2D, 0x2D),)


class TooComplex(Exception):
    """A schema or pattern that is too large for a grammar; one sentence."""


class Rules:
    """Owns the rules of one grammar. Bodies are GBNF; names are made here."""

    def __init__(self) -> None:
        self._bodies: dict[str, str] = {}
        self._names: dict[str, str] = {}  # by body: equal rules are one
        self._size = 0

    def name(self) -> str:
        """A name to be defined later, for rules that name themselves."""
        name = f"r{len(self._bodies)}"
        self._bodies[name] = ""
        return name

    def define(self, name: str, body: str) -> str:
        """Gives a name its body. Raises TooComplex."""
        self._size += len(name) + len(body) + 7
        if self._size > MAX_RULES_BYTES:
            raise TooComplex(f"its rules are above {MAX_RULES_BYTES:,} characters")
        self._bodies[name] = body
        return name

    def add(self, body: str) -> str:
        """The name of a rule with this body. Raises TooComplex."""
        if body not in self._names:
            self._names[body] = self.define(self.name(), body)
        return self._names[body]

    def add_recursive(self, body_of: Callable[[str], str]) -> str:
        """The name of a rule that names itself. Raises TooComplex."""
        key = body_of("")
        if key not in self._names:
            self._names[key] = name = self.name()
            self.define(name, body_of(name))
        return self._names[key]

    def text(self, root: str) -> str:
        """The whole grammar, which begins at `root`."""
        lines = [f"root ::= {root}", *(f"{name} ::= {body}" for name, body in self._bodies.items())]
        return "\n".join(lines) + "\n"


def literal(text: str) -> str:
    """Exactly this text."""
    return '"' + "".join(_escaped(ord(char), '"\\') for char in text) + '"'


def any_of(parts: Sequence[str]) -> str:
    """One of several."""
    return parts[0] if len(parts) == 1 else "(" + " | ".join(parts) + ")"


@lru_cache(maxsize=1024)  # the sets of a pattern, and the plain characters of every string
def characters(ranges: Ranges) -> str:
    """One character of a set that is not empty."""
    # What is said in fewer ranges is matched in fewer states.
    if ranges[-1][1] == ALL[-1][1]:
        return counted(ranges)
    return "[" + _ranges(ranges) + "]"


@lru_cache(maxsize=1024)
def counted(ranges: Ranges) -> str:
    """The same, for repeating it so and so often: back ends know a shortcut for what is not in a set."""
    return "[^" + _ranges(complement(ranges, within=((0, 0x10FFFF),))) + "]"


def normal(ranges: Sequence[tuple[int, int]]) -> Ranges:
    """Sorted and joined, without halves of surrogate pairs."""
    joined: list[tuple[int, int]] = []
    for low, high in sorted(ranges):
        if joined and low <= joined[-1][1] + 1:
            joined[-1] = joined[-1][0], max(joined[-1][1], high)
        else:
            joined.append((low, high))
    return intersection(tuple(joined), ALL)


def intersection(one: Ranges, other: Ranges) -> Ranges:
    """What is in both."""
    cuts = ((max(a, c), min(b, d)) for a, b in one for c, d in other)
    return tuple(sorted((low, high) for low, high in cuts if low <= high))


def complement(ranges: Ranges, within: Ranges = ALL) -> Ranges:
    """What is not in the set."""
    gaps: list[tuple[int, int]] = []
    start = 0
    for low, high in ranges:
        gaps.append((start, low - 1))
        start = high + 1
    gaps.append((start, 0x10FFFF))
    return intersection(tuple(gap for gap in gaps if gap[0] <= gap[1]), within)


def _ranges(ranges: Ranges) -> str:
    # A hyphen means itself only at the end, however it is written.
    apart = intersection(ranges, complement(_HYPHEN, within=((0, 0x10FFFF),)))
    written = [(_escaped(low, "^-[]"), _escaped(high, "^-[]")) for low, high in apart]
    text = "".join(low if low == high else f"{low}-{high}" for low, high in written)
    return text + "-" if intersection(ranges, _HYPHEN) else text


def _escaped(point: int, special: str) -> str:
    char = chr(point)
    if 0x20 <= point < 0x7F and char not in special and char not in '"\\':
        return char
    # Always four digits or eight: \\x would take in what follows.
    return f"\\u{point:04x}" if point < 0x10000 else f"\\U{point:08x}"
