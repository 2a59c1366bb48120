"""Rules that never end are found before a model follows them into a place with no way on."""

import json

import pytest

from corymb.models.grammar_backends import BadGrammar

ENDLESS = [
    ("root ::= root", "root"),
    ('root ::= root "a"', "root"),
    ("root ::= a\na ::= b\nb ::= a", "b"),
    ('root ::= "x" | "q" b\nb ::= "c" b', "b"),
    ('root ::= ("x" (b | b))* "y"\nb ::= [^"|(] "\\"" b', "b"),
]
ENDING = [
    'root ::= ""',
    'root ::= root "a" | "b"',
    'root ::= a\na ::= b?\nb ::= [(] a [|\\]] | "|("',
    'root ::= a{0,3} ("x" a)*\na ::= "y" | a{0,2}',
    'root ::= "x"\nunused ::= unused',
]


@pytest.mark.parametrize(("rules", "endless"), ENDLESS)
def test_a_rule_that_never_ends_is_refused_by_name(bytewise, rules, endless) -> None:
    with pytest.raises(BadGrammar, match=f"'{endless}' never ends"):
        bytewise.program(rules)


@pytest.mark.parametrize("rules", ENDING)
def test_recursion_that_can_end_is_taken(bytewise, rules) -> None:
    bytewise.program(rules)


def test_text_with_tags_in_it_ends_where_none_comes(tagwise) -> None:
    tagwise.program('root ::= TagDispatch(("<f>", b))\nb ::= "c"')
    with pytest.raises(BadGrammar, match="'b' never ends"):
        tagwise.program('root ::= TagDispatch(("<f>", b))\nb ::= "c" b')


def test_it_is_found_inside_a_structural_tag(tagwise) -> None:
    inner = {"type": "grammar", "grammar": "root ::= root"}
    thought = {"type": "tag", "begin": "<t>", "content": {"type": "any_text"}, "end": "</t>"}
    elements = [{"type": "optional", "content": thought}, inner]
    tag = {"type": "structural_tag", "format": {"type": "sequence", "elements": elements}}
    with pytest.raises(BadGrammar, match="never ends"):
        tagwise.program(json.dumps(tag), "structural_tag")
