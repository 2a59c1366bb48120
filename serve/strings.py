"""Rules for texts: whole answers by a pattern, and JSON strings by their length, pattern or format."""

from typing import Protocol

from corymb.models.grammar_backends import END, END_POINT
from corymb.serve.patterns import (
    BadPattern,
    Branch,
    Chars,
    Choice,
    Node,
    Repeat,
    Sequence,
    can_begin_in,
    lengths,
    parse,
)
from corymb.serve.rules import Ranges, Rules, any_of, characters, complement, counted, intersection, literal, normal
from corymb.serve.spoken import SPACE


class Spell(Protocol):
    """How a character of a set is written; `counts`: so and so many times."""

    def __call__(self, ranges: Ranges, *, counts: bool = False) -> str: ...


Ways = tuple[str, ...]  # alternatives

_SHORT_CHARS = 24  # what is longer and may stand in several places is a rule of its own
_MOST_UNROLLED = 8  # repetitions

# What stands in a JSON string as itself.
PLAIN: Ranges = complement(((0x00, 0x1F), (0x22, 0x22), (0x5C, 0x5C)))
_SHORT = {0x08: "b", 0x09: "t", 0x0A: "n", 0x0C: "f", 0x0D: "r", 0x22: '"', 0x5C: "\\"}

_SPACES = normal([(ord(char), ord(char)) for char in SPACE])

_YEAR = "(000[1-9]|00[1-9][0-9]|0[1-9][0-9]{2}|[1-9][0-9]{3})"
_DATE = (
    f"{_YEAR}-((0[13578]|1[02])-(0[1-9]|[12][0-9]|3[01])|(0[469]|11)-(0[1-9]|[12][0-9]|30)|02-(0[1-9]|1[0-9]|2[0-8]))"
)
_TIME = "([01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](\\.[0-9]{1,6})?(Z|[+\\-]([01][0-9]|2[0-3]):[0-5][0-9])"
_OCTET = "(25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])"
_LABEL = "[a-z][a-z0-9]{0,30}"
_HOST = f"{_LABEL}(\\.{_LABEL}){{0,3}}"
_WORD = "[A-Za-z0-9][A-Za-z0-9_+\\-]{0,30}"
_PATH = "(/[A-Za-z0-9._~\\-]{0,60}){0,8}(\\?[A-Za-z0-9._~=&\\-]{0,60})?(#[A-Za-z0-9._~\\-]{0,60})?"
# Each a part of what the format allows: what is written this way is right by every reading.
FORMATS = {
    "date": _DATE,
    "time": _TIME,
    "date-time": f"{_DATE}T{_TIME}",
    "duration": "P([0-9]{1,4}W|[0-9]{1,4}D(T[0-9]{1,4}H([0-9]{1,2}M([0-9]{1,2}S)?)?)?|T[0-9]{1,4}(H|M|S))",
    "email": f"{_WORD}(\\.{_WORD}){{0,3}}@{_HOST}",
    "hostname": _HOST,
    "ipv4": f"{_OCTET}(\\.{_OCTET}){{3}}",
    "ipv6": "[0-9a-f]{1,4}(:[0-9a-f]{1,4}){7}",
    "uri": f"https?://{_HOST}{_PATH}",
    "uri-reference": f"(https?://{_HOST})?{_PATH}",
    "uuid": "[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}",
}


def whole_answer(pattern: str) -> str:
    """The grammar of answers that match a pattern from end to end; it spells its end. Raises BadPattern, TooComplex."""
    rules = Rules()
    return rules.text(any_of([_followed(branch.node, END, rules, _apart_from_end) for branch in parse(pattern)]))


def part_of_answer(pattern: str) -> str:
    """The grammar of what matches a pattern, whatever follows. Raises BadPattern, TooComplex."""
    rules = Rules()
    return rules.text(any_of([_followed(branch.node, "", rules, _as_itself) for branch in parse(pattern)]))


def may_begin_with_space(pattern: str) -> bool:
    """Whether such an answer can begin with what otherwise only separates it from reasoning. Raises BadPattern."""
    return any(can_begin_in(branch.node, _SPACES) for branch in parse(pattern))


def json_string(rules: Rules) -> str:
    """Any JSON string."""
    return rules.add(f'"\\u0022" {tail(rules)}')


def counted_string(rules: Rules, least: int, most: int | None) -> str:
    """A JSON string of so many characters."""
    # Written without escapes: back ends count single characters of one set far faster than choices.
    one = counted(PLAIN)
    if most is None:
        return rules.add(f'"\\u0022" {one}{{{least},{least}}} {tail(rules)}')
    return rules.add(f'"\\u0022" {one}{{{least},{most}}} "\\u0022"')


def matching_string(rules: Rules, pattern: str, least: int, most: int | None) -> str:
    """A JSON string in which the pattern is found, of so many characters. Raises BadPattern, TooComplex."""
    branches = parse(pattern)
    for branch in branches:
        _check_length(branch, least, most)
    return any_of([_found(branch, rules) for branch in branches])


def format_string(rules: Rules, name: str) -> str:
    """A JSON string of a format in `FORMATS`."""
    return matching_string(rules, f"^{FORMATS[name]}$", 0, None)


def json_literal(text: str) -> str:
    """The characters of a JSON string, with what must be escaped escaped."""
    return "".join(char if _is_plain(ord(char)) else _escape(ord(char)) for char in text)


def _check_length(branch: Branch, least: int, most: int | None) -> None:
    shortest, longest = lengths(branch.node)
    if not (branch.from_start and branch.to_end):
        longest = None
    if shortest < least or (most is not None and (longest is None or longest > most)):
        raise BadPattern(
            0, "it does not keep to minLength and maxLength by itself, and both cannot be followed at once"
        )


def _found(branch: Branch, rules: Rules) -> str:
    before = "" if branch.from_start else f"{characters(PLAIN)}* "
    after = '"\\u0022"' if branch.to_end else tail(rules)
    return rules.add(f'"\\u0022" {before}{_followed(branch.node, after, rules, _in_json)}')


def tail(rules: Rules) -> str:
    """The rest of any string, its quote included: in one rule, so that few tokens reach beyond what it knows."""
    digit = "[0-9a-fA-F]"
    unpaired = f"[0-9abcefABCEF] {digit}{{3}} | [dD] [0-7] {digit}{{2}}"
    pair = f'[dD] [89abAB] {digit}{{2}} "\\u005cu" [dD] [c-fC-F] {digit}{{2}}'
    escape = rules.add(f'[\\u0022\\u005c/bfnrt] | "u" ({unpaired} | {pair})')
    body = '"\\u0022" | {plain} {tail} | "\\u005c" {escape} {tail}'
    return rules.add_recursive(lambda tail: body.format(plain=characters(PLAIN), tail=tail, escape=escape))


def _expression(node: Node, rules: Rules, spell: Spell) -> str:
    if isinstance(node, Chars):
        return spell(node.ranges)
    if isinstance(node, Choice):
        return any_of([_followed(item, "", rules, spell) for item in node.items])
    if isinstance(node, Repeat):
        return _repeated(node, rules, spell)
    return "(" + _followed(node, "", rules, spell) + ")"


def _followed(node: Node, then: str, rules: Rules, spell: Spell) -> str:
    """An expression and what comes behind it; "" where that is not known."""
    return any_of(_ways(node, (then,) if then else (), rules, spell))


def _ways(node: Node, thens: Ways, rules: Rules, spell: Spell) -> Ways:
    """The ways through an expression and what comes behind it, of which there may be several.

    Apart, so that behind each counted set that it may end in back ends see a character that is not in the set.
    """
    if isinstance(node, Sequence):
        return _sequence(node, thens, rules, spell)
    if thens and isinstance(node, Choice) and _ends_counted(node):
        return tuple(way for item in node.items for way in _ways(item, thens, rules, spell))
    if thens and isinstance(node, Repeat) and _is_counted(node):
        return tuple(f"{_repeated(node, rules, spell)} {then}" for then in thens)
    if thens and isinstance(node, Repeat) and _ends_counted(node):
        return _unrolled(node, thens, rules, spell)
    return _led([_expression(node, rules, spell)], thens, rules)


def _sequence(node: Sequence, thens: Ways, rules: Rules, spell: Spell) -> Ways:
    before: list[str] = []  # reversed
    for item in reversed(node.items):
        if (before or thens) and _is_counted_end(item):
            thens, before = _ways(item, _led(before, thens, rules), rules, spell), []
        else:
            before.append(_expression(item, rules, spell))
    return _led(before, thens, rules) or ('""',)


def _unrolled(node: Repeat, thens: Ways, rules: Rules, spell: Spell) -> Ways:
    assert node.most is not None, "without end it is not unrolled"
    after = thens
    for _ in range(node.most - node.least):
        after = (*thens, *_ways(node.item, after, rules, spell))
    for _ in range(node.least):
        after = _ways(node.item, after, rules, spell)
    return after


def _led(before: list[str], thens: Ways, rules: Rules) -> Ways:
    """`before`, reversed, and then one of several: its beginning stands for itself, and the rest may be a rule."""
    if not before:
        return thens
    rest = " ".join([*reversed(before[:-1]), *([any_of(thens)] if thens else [])])
    if len(thens) and len(rest) > _SHORT_CHARS:
        rest = rules.add(rest)
    return (f"{before[-1]} {rest}".rstrip(),)


def _ends_counted(node: Node) -> bool:
    """Whether it may end in a counted set, inside of what can be written so that something follows that."""
    if isinstance(node, Sequence):
        return bool(node.items) and _is_counted_end(node.items[-1])
    if isinstance(node, Choice):
        return any(_is_counted_end(item) for item in node.items)
    unrolls = isinstance(node, Repeat) and node.most is not None and 0 < node.most <= _MOST_UNROLLED
    return unrolls and isinstance(node, Repeat) and _is_counted_end(node.item)


def _is_counted_end(node: Node) -> bool:
    return (isinstance(node, Repeat) and _is_counted(node)) or _ends_counted(node)


def _is_counted(node: Repeat) -> bool:
    return isinstance(node.item, Chars) and (node.most or 0) > 1


def _repeated(node: Repeat, rules: Rules, spell: Spell) -> str:
    if node.most == 0:
        return '""'
    counts = f"{node.least},{'' if node.most is None else node.most}"
    if isinstance(node.item, Chars) and _is_counted(node):
        return f"{spell(node.item.ranges, counts=True)}{{{counts}}}"
    item = _expression(node.item, rules, spell)
    if not isinstance(node.item, Chars):
        item = rules.add(item)
    return f"{item}*" if counts == "0," else f"{item}{{{counts}}}"


def _as_itself(ranges: Ranges, *, counts: bool = False) -> str:
    low, high = ranges[0]
    if counts:
        return counted(ranges)
    return literal(chr(low)) if len(ranges) == 1 and low == high else characters(ranges)


def _apart_from_end(ranges: Ranges, *, counts: bool = False) -> str:
    apart = intersection(ranges, complement(((END_POINT, END_POINT),)))
    if not apart:
        raise BadPattern(0, f"the control character U+{END_POINT:04X} alone cannot be followed")
    return _as_itself(apart, counts=counts)


def _in_json(ranges: Ranges, *, counts: bool = False) -> str:
    """A character of the set as it stands in a JSON string; what needs an escape only where nothing else is in it."""
    plain = intersection(ranges, PLAIN)
    if plain:
        return _as_itself(plain, counts=counts)
    points = [point for low, high in ranges for point in range(low, high + 1)]
    return any_of([literal(_escape(point)) for point in points])


def _is_plain(point: int) -> bool:
    return bool(intersection(((point, point),), PLAIN))


def _escape(point: int) -> str:
    return f"\\{_SHORT[point]}" if point in _SHORT else f"\\u{point:04x}"
