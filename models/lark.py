"""Grammars in the notation that llguidance reads, from the rules that grammars are kept in."""

import json
import re
from collections.abc import Iterator

from corymb.models.grammar_backends import BadGrammar

Range = tuple[int, int]  # of code points, inclusive

_RULE = re.compile(r"(?m)^\s*([\w-]+)\s*::=")
_PIECE = re.compile(
    r"""\s+|\#[^\n]*
    |(?P<literal>"(?:\\.|[^"\\])*")
    |(?P<set>\[(?:\\.|[^\]\\])*\])
    |(?P<name>[\w-]+)
    |(?P<mark>[()|*+?]|\{\d+(?:,\d*)?\})""",
    re.VERBOSE | re.DOTALL,
)
_CHARACTER = re.compile(r"\\(?:x([0-9a-fA-F]{2})|u([0-9a-fA-F]{4})|U([0-9a-fA-F]{8})|(.))|(.)", re.DOTALL)
_NEVER = {"{0}", "{0,0}"}  # times
_NAMED = {"n": "\n", "r": "\r", "t": "\t"}


def from_rules(text: str) -> str:
    """The same grammar in Lark's notation. Raises BadGrammar for what is not a grammar."""
    starts = list(_RULE.finditer(text))
    if not starts or text[: starts[0].start()].strip():
        raise BadGrammar("a grammar begins with a rule, like: root ::= ...")
    ends = [each.start() for each in starts[1:]] + [len(text)]
    bodies = {each[1]: text[each.end() : end] for each, end in zip(starts, ends, strict=True)}
    if "root" not in bodies:
        raise BadGrammar("the grammar has no rule 'root'")
    names = {name: "start" if name == "root" else f"r_{index}" for index, name in enumerate(bodies)}
    return "\n".join(f"{names[name]}: {' '.join(_body(body, names))}" for name, body in bodies.items()) + "\n"


def _body(body: str, names: dict[str, str]) -> list[str]:
    parts: list[str] = []
    at = 0
    while at < len(body):
        piece = _PIECE.match(body, at)
        if piece is None:
            raise BadGrammar(f"{body[at : at + 20]!r} is no part of a rule")
        at = piece.end()
        if piece["literal"]:
            parts.append(json.dumps("".join(_characters(piece["literal"][1:-1])), ensure_ascii=False))
        elif piece["set"]:
            parts.append(_set(piece["set"][1:-1]))
        elif piece["name"]:
            if piece["name"] not in names:
                raise BadGrammar(f"there is no rule {piece['name']!r}")
            parts.append(names[piece["name"]])
        elif piece["mark"] in _NEVER:
            _drop_last(parts)
            parts.append('""')
        elif piece["mark"]:
            parts.append(piece["mark"])
    return parts


def _drop_last(parts: list[str]) -> None:
    """Takes off the last part, or the whole group that ends there."""
    depth = 0
    while parts:
        part = parts.pop()
        depth += (part == ")") - (part == "(")
        if depth == 0:
            return


def _characters(spelled: str) -> Iterator[str]:
    for narrow, short, wide, escaped, plain in _CHARACTER.findall(spelled):
        number = narrow or short or wide
        yield chr(int(number, 16)) if number else _NAMED.get(escaped, escaped) or plain


def _set(spelled: str) -> str:
    """One character of a set, as a regular expression."""
    negated = spelled.startswith("^")
    marks = [
        (
            chr(int(narrow or short or wide, 16)) if narrow or short or wide else _NAMED.get(escaped, escaped) or plain,
            plain,
        )
        for narrow, short, wide, escaped, plain in _CHARACTER.findall(spelled[negated:])
    ]
    ranges: list[Range] = []
    at = 0
    while at < len(marks):
        is_range = at + 2 < len(marks) and marks[at + 1][1] == "-"  # a hyphen at the end means itself
        low, high = ord(marks[at][0]), ord(marks[at + 2 if is_range else at][0])
        if low > high:
            raise BadGrammar(f"a set counts down from {chr(low)!r} to {chr(high)!r}")
        ranges.append((low, high))
        at += 3 if is_range else 1
    # What is not in a set is written as what is: of its own reading of "not" llguidance makes a little too much.
    parts = [part for each in (_outside(ranges) if negated else ranges) for part in _characters_in(*each)]
    if not parts:
        raise BadGrammar("a set of no characters")
    return "/[" + "".join(_range(*part) for part in parts) + "]/"


def _outside(ranges: list[Range]) -> list[Range]:
    gaps, start = [], 0
    for low, high in sorted(ranges):
        gaps.append((start, low - 1))
        start = max(start, high + 1)
    return [*gaps, (start, 0x10FFFF)]


def _characters_in(low: int, high: int) -> list[Range]:
    """Without halves of surrogate pairs, which are none."""
    return [part for part in ((low, min(high, 0xD7FF)), (max(low, 0xE000), high)) if part[0] <= part[1]]


def _range(low: int, high: int) -> str:
    return f"\\u{{{low:x}}}" + (f"-\\u{{{high:x}}}" if high > low else "")
