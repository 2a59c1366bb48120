"""Patterns and numbers as rules: what they allow matches, digit by digit and letter by letter."""

import json
import random
import re
import string
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from corymb.models.grammar_backends import Vocabulary, make_backend
from corymb.scheduler.messages import Grammar
from corymb.serve.compiling import rehearse
from corymb.serve.patterns import BadPattern, parse
from corymb.serve.ranges import Bound, integer_rule, multiple_rule, number_rule
from corymb.serve.rules import Rules
from corymb.serve.strings import matching_string, whole_answer

ATOMS = st.sampled_from(
    (
        *("a", "é", ".", "\\d", "\\w", "\\s", "\\S", "\\W", "\\D", "[a-c]", "[^a-c]", "[^\\x00-\\x7f]", "\\.", "\\n"),
        *('"', "\\\\", "[\\]\\-x]", "\\u00e9", "[\\d_]", "/", "\\t", "[\\s\\S]", "[a\\D]"),
    )
)
COUNTS = st.sampled_from(["", "", "*", "+", "?", "{2}", "{1,3}", "{2,}", "*?"])


def pieces(patterns):
    groups = st.builds(lambda inside, count: f"(?:{inside}){count}", patterns, COUNTS)
    return st.one_of(st.builds(str.__add__, patterns, patterns), groups, st.builds("{}|{}".format, patterns, patterns))


PATTERNS = st.recursive(st.builds(str.__add__, ATOMS, COUNTS), pieces, max_leaves=5)


def alternatives(pattern: str) -> str:
    """With anchors around the whole of it."""
    return f"^(?:{pattern})$"


@given(PATTERNS, st.integers(0, 1 << 30))
def test_what_a_pattern_allows_matches_it(bytewise, pattern, seed) -> None:
    whole = bytewise.program(whole_answer(pattern), "regex", spells_end=True)
    for number in range(3):
        text = bytewise.walk(whole, seed + number, longest=60)
        assert text is None or re.fullmatch(pattern, text), text
    for search in (pattern, alternatives(pattern)):
        rules = Rules()
        program = bytewise.program(rules.text(matching_string(rules, search, 0, None)))
        text = bytewise.walk(program, seed, longest=60)
        assert text is None or re.search(search, json.loads(text)), text


REACHED = [
    ("[^\\x00-\\x7f]{2}", "é😀"),
    ("yes|no", "no"),
    ("^\\d{4}-\\d{2}$", "2026-11"),
    ("(a|b)*c?", ""),
    ("a.c", "a€c"),
    ("[\\s\\S]{3}", "a\n€"),
    ("[\\w\\W]+", "a !"),
]


@pytest.mark.parametrize(("pattern", "text"), REACHED)
def test_patterns_reach_their_texts(bytewise, pattern, text) -> None:
    assert bytewise.accepts(bytewise.program(whole_answer(pattern), "regex", spells_end=True), text)


BROKEN = [
    ("(", 0),
    ("a{2,1}", 1),
    ("(?=a)b", 0),
    ("(?i)a", 0),
    ("(?<!a)b", 0),
    ("a)", 1),
    ("x[", 1),
    ("[z-a]", 4),
    ("[]", 0),
    ("a**", 2),
    ("\\bfoo", 0),
    ("(a)\\1", 3),
    ("\\p{L}", 0),
    ("a^", 1),
    ("a$b", 1),
    ("(a$)", 2),
    ("*a", 0),
    ("a{99999}", 1),
    ("a\\", 1),
    ("(" * 100 + "a" + ")" * 100, 65),
]


@pytest.mark.parametrize(("pattern", "position"), BROKEN)
def test_what_cannot_be_followed_is_told_with_its_position(pattern, position) -> None:
    with pytest.raises(BadPattern, match=f"at position {position}:"):
        parse(pattern)


def is_inside(value: Decimal, low: Bound | None, high: Bound | None) -> bool:
    above = low is None or value > low.value or (value == low.value and not low.open)
    return above and (high is None or value < high.value or (value == high.value and not high.open))


def bounds(values):
    return st.one_of(st.none(), st.builds(Bound, values, st.booleans()))


WHOLE = st.integers(-3000, 3000).map(Decimal)
PARTS = st.one_of(WHOLE, st.integers(-4000, 4000).map(lambda number: Decimal(number) / 16))


@given(bounds(WHOLE), bounds(WHOLE), st.integers(-3100, 3100), st.integers(0, 99))
def test_integers_are_allowed_exactly_within_their_bounds(bytewise, low, high, number, seed) -> None:
    rules = Rules()
    rule = integer_rule(rules, low, high)
    near = [number, *(int(bound.value) + step for bound in (low, high) if bound for step in (-1, 0, 1))]
    if rule is None:
        assert not any(is_inside(Decimal(value), low, high) for value in near)
        return
    program = bytewise.program(rules.text(rule))
    for value in near:
        assert bytewise.accepts(program, str(value)) == is_inside(Decimal(value), low, high), value
    assert is_inside(Decimal(bytewise.walk(program, seed)), low, high)


@given(bounds(PARTS), bounds(PARTS), PARTS, st.integers(0, 99))
def test_decimals_are_allowed_within_their_bounds_as_doubles_too(bytewise, low, high, number, seed) -> None:
    rules = Rules()
    rule = number_rule(rules, low, high)
    if rule is None:
        return
    program = bytewise.program(rules.text(rule))
    text = f"{number:f}"
    if bytewise.accepts(program, text):
        assert is_inside(number, low, high)
    for more in range(3):
        said = bytewise.walk(program, seed + more)
        assert is_inside(Decimal(said), low, high)
        assert is_inside(Decimal(repr(float(said))), low, high)


def test_multiples_are_exact(bytewise) -> None:
    rules = Rules()
    program = bytewise.program(rules.text(multiple_rule(rules, 7)))
    found = [number for number in range(-80, 200) if bytewise.accepts(program, str(number))]
    assert found == [number for number in range(-80, 200) if number % 7 == 0]


NOT_THE_END = [".*", "[^a]{0,3}", "[\\x00-\\x1f]+", "a|\\x04?b"]


@pytest.mark.parametrize("pattern", NOT_THE_END)
def test_the_character_that_ends_an_answer_is_never_in_it(bytewise, pattern) -> None:
    if "x04?" in pattern:
        with pytest.raises(BadPattern, match=r"U\+0004"):
            whole_answer(pattern)
        return
    program = bytewise.program(whole_answer(pattern), "regex", spells_end=True)
    assert not bytewise.accepts(program, "\x04")
    assert not bytewise.accepts(program, "\x01\x04")


def test_what_follows_a_counted_set_is_known_soon() -> None:
    """With a large vocabulary: tokens that go beyond what may still come are not tried one by one."""
    chooser = random.Random(5)
    words = {"".join(chooser.choices(string.ascii_lowercase, k=chooser.randrange(2, 12))) for _ in range(40_000)}
    tokens = [bytes([value]) for value in range(256)] + [b"", *(word.encode() for word in sorted(words))]
    backend = make_backend("xgrammar", Vocabulary(tokens, frozenset({256}), [256]))
    for pattern in ("[a-z]{3,40}", "x( [a-z]{2,20}(-[a-z]{2,20})?)?"):
        program = backend.compile(Grammar("regex", whole_answer(pattern), spells_end=True))
        slowest_s = min(rehearse(program, len(tokens)) for _ in range(3))
        assert slowest_s < 0.001, pattern
