"""Regular expressions as trees: the part of them that JavaScript and Python read alike, or a set that both allow."""

from dataclasses import dataclass
from typing import NoReturn

from corymb.serve.rules import ALL, Ranges, complement, intersection, normal

MAX_PATTERN_CHARS = 1 << 16
MAX_REPEATS = 10_000
MAX_DEPTH = 64
MAX_ALTERNATIVES = 2_000

_DIGITS: Ranges = ((0x30, 0x39),)
_WORD: Ranges = ((0x30, 0x39), (0x41, 0x5A), (0x5F, 0x5F), (0x61, 0x7A))
_SPACE: Ranges = ((0x09, 0x0D), (0x20, 0x20))
_ASCII: Ranges = ((0, 0x7F),)
# What any reader may take for a space or a line's end.
_ANY_SPACE = normal(
    (
        *((0x09, 0x0D), (0x1C, 0x20), (0x85, 0x85), (0xA0, 0xA0), (0x1680, 0x1680), (0x2000, 0x200A)),
        *((0x2028, 0x2029), (0x202F, 0x202F), (0x205F, 0x205F), (0x3000, 0x3000), (0xFEFF, 0xFEFF)),
    )
)
_DOT = complement(((0x0A, 0x0A), (0x0D, 0x0D), (0x85, 0x85), (0x2028, 0x2029)))
_CLASSES: dict[str, Ranges] = {
    "d": _DIGITS,
    "w": _WORD,
    "s": _SPACE,
    # The readers differ on what else is a digit or a word, so these stay where they agree.
    "D": complement(_DIGITS, within=((0, 0x65F),)),
    "W": complement(_WORD, within=_ASCII),
    "S": complement(_ANY_SPACE),
}
_CONTROLS = {"n": 0x0A, "r": 0x0D, "t": 0x09, "f": 0x0C, "v": 0x0B, "0": 0}
_SPECIAL = frozenset("^$\\.*+?()[]{}|/-")


class BadPattern(Exception):
    """Says at which position a pattern cannot be followed, and why."""

    def __init__(self, position: int, reason: str) -> None:
        super().__init__(f"at position {position}: {reason}")


@dataclass(frozen=True, slots=True)
class Chars:
    """One character of a set."""

    ranges: Ranges


@dataclass(frozen=True, slots=True)
class Sequence:
    """One after another."""

    items: tuple["Node", ...]


@dataclass(frozen=True, slots=True)
class Choice:
    """One of several."""

    items: tuple["Node", ...]


@dataclass(frozen=True, slots=True)
class Repeat:
    """Several times."""

    item: "Node"
    least: int
    most: int | None  # None: any number


Node = Chars | Sequence | Choice | Repeat


@dataclass(frozen=True, slots=True)
class Branch:
    """One alternative of the whole pattern."""

    node: Node
    from_start: bool  # it begins with ^
    to_end: bool  # it ends with $


def parse(pattern: str) -> tuple[Branch, ...]:
    """The alternatives of a pattern. Raises BadPattern."""
    if len(pattern) > MAX_PATTERN_CHARS:
        raise BadPattern(MAX_PATTERN_CHARS, f"longer than {MAX_PATTERN_CHARS:,} characters")
    return _Parser(pattern).branches()


def lengths(node: Node) -> tuple[int, int | None]:
    """The fewest and the most characters that it matches; None: any number."""
    if isinstance(node, Chars):
        return 1, 1
    parts = [lengths(node.item)] if isinstance(node, Repeat) else [lengths(item) for item in node.items]
    unbounded = any(most is None for _, most in parts)
    if isinstance(node, Choice):
        return min(least for least, _ in parts), None if unbounded else max(most or 0 for _, most in parts)
    if isinstance(node, Sequence):
        return sum(least for least, _ in parts), None if unbounded else sum(most or 0 for _, most in parts)
    least, most = parts[0]
    return least * node.least, None if node.most is None or most is None else most * node.most


def can_begin_in(node: Node, ranges: Ranges) -> bool:
    """Whether some text that it matches begins with a character of a set."""
    if isinstance(node, Chars):
        return bool(intersection(node.ranges, ranges))
    if isinstance(node, Choice):
        return any(can_begin_in(item, ranges) for item in node.items)
    if isinstance(node, Repeat):
        return node.most != 0 and can_begin_in(node.item, ranges)
    for item in node.items:
        if can_begin_in(item, ranges):
            return True
        if lengths(item)[0]:
            return False
    return False


class _Parser:
    """Recursive descent over the pattern, with the position for messages."""

    def __init__(self, pattern: str) -> None:
        self._text = pattern
        self._at = 0
        self._depth = 0
        self._num_alternatives = 0

    def branches(self) -> tuple[Branch, ...]:
        branches = [self._branch()]
        while self._take("|"):
            branches.append(self._branch())
        if self._at < len(self._text):
            self._fail("this closes a group that is not open")
        return tuple(branches)

    def _branch(self) -> Branch:
        self._count_alternative()
        from_start = self._take("^")
        node = self._sequence()
        to_end = self._take("$")
        if to_end and self._peek() not in ("", "|"):
            self._at -= 1
            self._fail("$ is followed here only at the end of the pattern")
        return Branch(node, from_start, to_end)

    def _alternatives(self) -> Node:
        items = [self._sequence()]
        while self._take("|"):
            self._count_alternative()
            items.append(self._sequence())
        return items[0] if len(items) == 1 else Choice(tuple(items))

    def _sequence(self) -> Node:
        items: list[Node] = []
        while self._peek() not in ("", "|", ")", "$"):
            items.append(self._repeated())
        return items[0] if len(items) == 1 else Sequence(tuple(items))

    def _repeated(self) -> Node:
        node, begin = self._atom(), self._at
        bounds = self._bounds()
        if bounds is None:
            return node
        least, most = bounds
        self._take("?")  # lazy or not, the same texts match
        if self._peek() and self._peek() in "*+?":
            self._fail("two repetitions in a row")
        if most is not None and most < least:
            self._at = begin
            self._fail(f"{{{least},{most}}} counts backwards")
        if max(least, most or 0) > MAX_REPEATS:
            self._at = begin
            self._fail(f"repeated more than {MAX_REPEATS:,} times")
        return Repeat(node, least, most)

    def _bounds(self) -> tuple[int, int | None] | None:
        for mark, bounds in (("*", (0, None)), ("+", (1, None)), ("?", (0, 1))):
            if self._take(mark):
                return bounds
        if not self._take("{"):
            return None
        least = self._number()
        if self._take("}"):
            return least, least
        if not self._take(","):
            self._fail("expected {n}, {n,} or {n,m}; write \\{ for the character")
        most = None if self._peek() == "}" else self._number()
        if not self._take("}"):
            self._fail("expected }")
        return least, most

    def _atom(self) -> Node:
        char = self._peek()
        if char == "(":
            return self._group()
        if char == "[":
            return Chars(self._set())
        if char == ".":
            self._at += 1
            return Chars(_DOT)
        if char == "\\":
            return Chars(self._escape(negated=False))
        if char in "*+?{":
            self._fail("nothing to repeat")
        if char in "^]}":
            self._fail(f"{char} stands for itself only as \\{char}")
        self._at += 1
        return Chars(_one(char, self))

    def _group(self) -> Node:
        begin = self._at
        self._at += 1
        if self._take("?") and not self._take(":"):
            self._group_name(begin)
        self._depth += 1
        if self._depth > MAX_DEPTH:
            self._fail(f"groups are more than {MAX_DEPTH} deep")
        node = self._alternatives()
        self._depth -= 1
        if self._peek() == "$":
            self._fail("$ is followed here only at the end of the pattern")
        if not self._take(")"):
            self._at = begin
            self._fail("this group is not closed")
        return node

    def _group_name(self, begin: int) -> None:
        self._take("P")
        end = self._text.find(">", self._at)
        name = self._text[self._at + 1 : end]
        if not (self._take("<") and end > 0 and name.isidentifier()):
            self._at = begin
            self._fail("look-around, back references and flags cannot be followed")
        self._at = end + 1

    def _set(self) -> Ranges:
        begin = self._at
        self._at += 1
        negated = self._take("^")
        ranges: list[tuple[int, int]] = []
        while not self._take("]"):
            if not self._peek():
                self._at = begin
                self._fail("this set is not closed")
            ranges += self._member(negated=negated)
        found = normal(ranges)
        found = complement(found) if negated else found
        if not found:
            self._at = begin
            self._fail("no character is in this set")
        return found

    def _member(self, *, negated: bool) -> Ranges:
        low = self._single(negated=negated)
        if not (self._peek() == "-" and self._text[self._at + 1 : self._at + 2] not in ("", "]")):
            return low
        self._at += 1
        high = self._single(negated=negated)
        if low[0][0] != low[-1][1] or high[0][0] != high[-1][1]:
            self._fail("a range needs a character on both sides")
        if low[0][0] > high[0][0]:
            self._fail("a range counts backwards")
        return ((low[0][0], high[0][0]),)

    def _single(self, *, negated: bool) -> Ranges:
        if self._peek() == "\\":
            return self._escape(negated=negated)
        char = self._peek()
        if char == "[":
            self._fail("write \\[ inside a set")
        self._at += 1
        return _one(char, self)

    def _escape(self, *, negated: bool) -> Ranges:
        """`negated`: it stands in a set of what is not meant."""
        self._at += 1
        char = self._peek()
        self._at += 1
        if char in _CLASSES:
            if negated and char in "DWS":  # what is left is less than either reader means
                self._at -= 2
                self._fail(f"\\{char} inside a negated set cannot be followed")
            return _CLASSES[char]
        if char in _CONTROLS and not (char == "0" and self._peek().isdigit()):
            return ((_CONTROLS[char], _CONTROLS[char]),)
        if char in ("x", "u"):
            return self._code_point(2 if char == "x" else 4)
        if char and (char in _SPECIAL or not (char.isalnum() or char == "_")):
            return _one(char, self)
        self._at -= 2
        return self._fail(f"\\{char} cannot be followed" if char else "the pattern ends with a backslash")

    def _code_point(self, num_digits: int) -> Ranges:
        digits = self._text[self._at : self._at + num_digits]
        if len(digits) < num_digits or not all(digit in "0123456789abcdefABCDEF" for digit in digits):
            self._fail(f"expected {num_digits} hexadecimal digits")
        self._at += num_digits
        return _one(chr(int(digits, 16)), self)

    def _number(self) -> int:
        begin = self._at
        while self._peek().isascii() and self._peek().isdigit():
            self._at += 1
        if not 0 < self._at - begin <= 9:
            self._fail("expected a number of at most 9 digits")
        return int(self._text[begin : self._at])

    def _count_alternative(self) -> None:
        self._num_alternatives += 1
        if self._num_alternatives > MAX_ALTERNATIVES:
            self._fail(f"more than {MAX_ALTERNATIVES:,} alternatives")

    def _peek(self) -> str:
        return self._text[self._at : self._at + 1]

    def _take(self, char: str) -> bool:
        found = self._peek() == char
        self._at += found
        return found

    def _fail(self, reason: str) -> NoReturn:
        raise BadPattern(self._at, reason)

    def fail_before(self, reason: str) -> NoReturn:
        """Refuses the character that was taken last."""
        raise BadPattern(self._at - 1, reason)


def _one(char: str, parser: _Parser) -> Ranges:
    found = intersection(((ord(char), ord(char)),), ALL)
    if not found:
        parser.fail_before("half of a surrogate pair is no character")
    return found
