"""Rules for texts: whole answers by a pattern, and JSON strings by their length, pattern or format."""

from collections.abc import Callable

from corymb.serve.patterns import BadPattern, Branch, Chars, Choice, Node, Repeat, can_begin_in, lengths, parse
from corymb.serve.rules import Ranges, Rules, any_of, characters, complement, intersection, literal, normal
from corymb.serve.spoken import SPACE

Spell = Callable[[Ranges], str]  # how a character of a set is written

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
_LABEL = "[a-z]([a-z0-9]{0,30}[a-z0-9])?"
_HOST = f"{_LABEL}(\\.{_LABEL}){{0,3}}"
_PATH = "(/[A-Za-z0-9._~\\-]{0,60}){0,8}(\\?[A-Za-z0-9._~=&\\-]{0,60})?(#[A-Za-z0-9._~\\-]{0,60})?"
# Each a part of what the format allows: what is written this way is right by every reading.
FORMATS = {
    "date": _DATE,
    "time": _TIME,
    "date-time": f"{_DATE}T{_TIME}",
    "duration": "P([0-9]{1,4}W|[0-9]{1,4}D(T[0-9]{1,4}H([0-9]{1,2}M([0-9]{1,2}S)?)?)?|T[0-9]{1,4}(H|M|S))",
    "email": f"[A-Za-z0-9]([A-Za-z0-9_+\\-]{{0,30}}[A-Za-z0-9])?(\\.[A-Za-z0-9]{{1,30}}){{0,3}}@{_HOST}",
    "hostname": _HOST,
    "ipv4": f"{_OCTET}(\\.{_OCTET}){{3}}",
    "ipv6": "[0-9a-f]{1,4}(:[0-9a-f]{1,4}){7}",
    "uri": f"https?://{_HOST}{_PATH}",
    "uri-reference": f"(https?://{_HOST})?{_PATH}",
    "uuid": "[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}",
}


def whole_answer(pattern: str) -> str:
    """The grammar of answers that match a pattern from end to end. Raises BadPattern, TooComplex."""
    rules = Rules()
    return rules.text(any_of([_expression(branch.node, rules, _as_itself) for branch in parse(pattern)]))


def may_begin_with_space(pattern: str) -> bool:
    """Whether such an answer can begin with what otherwise only separates it from reasoning. Raises BadPattern."""
    return any(can_begin_in(branch.node, _SPACES) for branch in parse(pattern))


def json_string(rules: Rules) -> str:
    """Any JSON string."""
    return rules.add(f'"\\u0022" {tail(rules)}')


def counted_string(rules: Rules, least: int, most: int | None) -> str:
    """A JSON string of so many characters."""
    # Written without escapes: back ends count single characters of one set far faster than choices.
    one = rules.add(characters(PLAIN))
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
    return rules.add(f'"\\u0022" {before}{_expression(branch.node, rules, _in_json)} {after}')


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
        return any_of([_expression(item, rules, spell) for item in node.items])
    if isinstance(node, Repeat):
        return _repeated(node, rules, spell)
    return "(" + " ".join(_expression(item, rules, spell) for item in node.items) + ")" if node.items else '""'


def _repeated(node: Repeat, rules: Rules, spell: Spell) -> str:
    item = _expression(node.item, rules, spell)
    if not isinstance(node.item, Chars):
        item = rules.add(item)
    if node.most is None:
        return f"{item}*" if node.least == 0 else f"{item}{{{node.least},}}"
    return f"{item}{{{node.least},{node.most}}}" if node.most else '""'


def _as_itself(ranges: Ranges) -> str:
    return characters(ranges)


def _in_json(ranges: Ranges) -> str:
    """A character of the set as it stands in a JSON string; what needs an escape only where nothing else is in it."""
    plain = intersection(ranges, PLAIN)
    if plain:
        return characters(plain)
    points = [point for low, high in ranges for point in range(low, high + 1)]
    return any_of([literal(_escape(point)) for point in points])


def _is_plain(point: int) -> bool:
    return bool(intersection(((point, point),), PLAIN))


def _escape(point: int) -> str:
    return f"\\{_SHORT[point]}" if point in _SHORT else f"\\u{point:04x}"
