"""Schemas as grammars: what is accepted always validates, and everything else is refused by name."""

import json
import sys

import jsonschema
import pytest
from hypothesis import given
from hypothesis import strategies as st

from corymb.serve.rules import TooComplex
from corymb.serve.schema_words import Unsupported
from corymb.serve.schemas import MAX_ENUM_VALUES, MAX_PROPERTIES, any_json_rules, schema_rules

NAMES = st.sampled_from(["a", "ab", "b", 'q"', "é", "\n", ""])
SCALARS = st.one_of(
    st.none(), st.booleans(), st.integers(-9, 9), st.sampled_from([0.5, 1.0, -2.25]), st.sampled_from(["", "x", 'y"\\'])
)
COUNTS = st.integers(0, 4)
BOUNDS = st.one_of(st.integers(-200, 200), st.sampled_from([0.5, -1.5, 99.25, 1e6]))


def some(**words):
    """An object with some of these keywords."""
    return st.fixed_dictionaries({}, optional=words)


def inner(schemas):
    """Schemas with others inside."""
    objects = some(
        type=st.just("object"),
        properties=st.dictionaries(NAMES, schemas, max_size=3),
        required=st.lists(NAMES, max_size=2, unique=True),
        additionalProperties=st.one_of(st.booleans(), schemas),
        minProperties=st.integers(0, 2),
        maxProperties=COUNTS,
    )
    arrays = some(
        type=st.just("array"),
        items=schemas,
        prefixItems=st.lists(schemas, min_size=1, max_size=3),
        minItems=COUNTS,
        maxItems=COUNTS,
        uniqueItems=st.just(False),
    )
    several = st.lists(schemas, min_size=1, max_size=3)
    joined = some(allOf=several, anyOf=several, type=st.sampled_from(["object", "string", ["number", "null"]]))
    options = st.builds(lambda items: {"oneOf": items}, several)
    named = some(patternProperties=st.dictionaries(st.sampled_from(["^a", "b$"]), schemas, min_size=1, max_size=1))
    return st.one_of(objects, objects, arrays, joined, options, named, st.just({"$ref": "#/$defs/d"}))


LEAVES = st.one_of(
    st.booleans(),
    some(type=st.just("string"), minLength=COUNTS, maxLength=COUNTS),
    some(type=st.just("string"), pattern=st.sampled_from(["^a+$", "b", "^[^x]{2,3}$", "\\d|^z"]), maxLength=st.just(9)),
    some(type=st.just("string"), format=st.sampled_from(["date", "uuid", "ipv4", "time"])),
    some(
        type=st.sampled_from(["integer", "number", ["integer", "null"]]),
        minimum=BOUNDS,
        maximum=BOUNDS,
        exclusiveMinimum=BOUNDS,
        exclusiveMaximum=BOUNDS,
    ),
    some(type=st.just("integer"), multipleOf=st.sampled_from([1, 3, 7, 10])),
    st.builds(lambda values: {"enum": values}, st.lists(SCALARS, min_size=1, max_size=4)),
    st.builds(lambda value: {"const": value}, st.one_of(SCALARS, st.lists(SCALARS, max_size=2))),
    some(type=st.sampled_from(["null", "boolean", ["string", "integer"], ["array", "object"]])),
)
SCHEMAS = st.recursive(LEAVES, inner, max_leaves=6)


@given(SCHEMAS, SCHEMAS, st.integers(0, 1 << 30))
def test_what_a_grammar_allows_validates(bytewise, schema, definition, seed) -> None:
    if isinstance(schema, dict):
        schema = {**schema, "$defs": {"d": definition}}
    try:
        program = bytewise.program(schema_rules(schema))
    except (Unsupported, TooComplex):
        return
    for number in range(4):
        text = bytewise.walk(program, seed + number)
        if text is not None:
            formats = jsonschema.Draft202012Validator.FORMAT_CHECKER
            validator = jsonschema.Draft202012Validator(schema, format_checker=formats)
            validator.validate(json.loads(text))


def test_references_to_what_cannot_be_leave_the_rest(bytewise) -> None:
    never = {"type": "object", "properties": {"again": {"$ref": "#/$defs/d"}, "no": False}, "required": ["again", "no"]}
    for definition in (False, never):
        schema = {"type": "array", "prefixItems": [{"$ref": "#/$defs/d"}], "$defs": {"d": definition}}
        program = bytewise.program(schema_rules(schema))
        assert bytewise.accepts(program, "[]")
        assert not bytewise.accepts(program, "[{}]")


WHO = {"type": "string", "enum": ["Ana", "Бо", "陈😀"]}
PERSON = {
    "type": "object",
    "properties": {
        "who": {"$ref": "#/$defs/W"},
        "note": {"anyOf": [{"type": "string", "maxLength": 4}, {"type": "null"}]},
        "code": {"type": "string", "pattern": "^[A-Z]{2}-\\d{3}$"},
        "age": {"type": "integer", "minimum": 0, "maximum": 120},
        "next": {"anyOf": [{"$ref": "#"}, {"type": "null"}]},
    },
    "required": ["who", "note", "code", "age", "next"],
    "additionalProperties": False,
    "$defs": {"W": WHO},
}
ANA = {"who": "Ana", "note": None, "code": "AB-123", "age": 120, "next": None}

# What people and their libraries write, with values that must be reachable.
WRITTEN = [
    (PERSON, [{**ANA, "next": {**ANA, "who": "陈😀", "note": "é\U0001f600ab"}}]),
    ({"type": "object"}, [{}, {"a": [1, 2.5e10, "x\n", None, {"b": True}]}]),
    ({"type": "object", "properties": {}}, [{}]),
    ({"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "string"}}}, [{}, {"b": "x"}, {"a": 1}]),
    ({"type": "object", "additionalProperties": {"type": "number"}}, [{"x": 1.5, "y": -2}]),
    (
        {"type": "object", "properties": {"ab": {"const": 1}}, "required": ["ab"], "additionalProperties": True},
        [{"ab": 1}, {"ab": 1, "abc": 2, "a": 3, "": 4}],
    ),
    ({"type": "array", "items": {"type": "string"}, "minItems": 1, "maxItems": 3}, [["a"], ["a", "b", "c"]]),
    ({"type": "array", "prefixItems": [{"type": "integer"}, {"type": "string"}], "minItems": 2}, [[1, "a"]]),
    ({"allOf": [{"$ref": "#/$defs/W"}], "$defs": {"W": WHO}, "description": "of old pydantic"}, ["Бо"]),
    ({"$ref": "#/$defs/W", "default": "Ana", "$defs": {"W": WHO}}, ["Ana"]),
    ({"type": ["string", "null"], "title": "T", "x-order": 3}, ["", None]),
    ({"type": "number", "exclusiveMinimum": 0, "maximum": 1}, [0.5, 1, 0.001]),
    ({"type": "string", "format": "date-time"}, ["2026-11-30T20:00:00Z"]),
    ({"enum": [1, "a", None, True, {"x": [1]}]}, [1, "a", None, True]),
    (
        {
            "oneOf": [
                {
                    "type": "object",
                    "properties": {"kind": {"const": "a"}, "n": {"type": "integer"}},
                    "required": ["kind"],
                },
                {"type": "object", "properties": {"kind": {"const": "b"}}, "required": ["kind"]},
            ]
        },
        [{"kind": "a", "n": 1}, {"kind": "b"}],
    ),
    (
        {
            "$ref": "#/$defs/node",
            "$defs": {
                "node": {
                    "type": "object",
                    "properties": {"children": {"type": "array", "items": {"$ref": "#/$defs/node"}}},
                    "required": ["children"],
                    "additionalProperties": False,
                }
            },
        },
        [{"children": [{"children": []}, {"children": [{"children": []}]}]}],
    ),
]


@pytest.mark.parametrize(("schema", "values"), WRITTEN, ids=lambda value: json.dumps(value)[:40])
def test_usual_schemas_reach_their_values(bytewise, schema, values) -> None:
    program = bytewise.program(schema_rules(schema))
    for value in values:
        jsonschema.Draft202012Validator(schema).validate(value)
        for options in ({}, {"separators": (",", ":")}, {"indent": 2}):
            text = json.dumps(value, ensure_ascii=False, **options)
            assert bytewise.accepts(program, text), text


WRONG = [
    (PERSON, {**ANA, "who": "Zed"}),
    (PERSON, {**ANA, "age": 121}),
    (PERSON, {**ANA, "extra": 1}),
    (PERSON, {**ANA, "code": "ab-1"}),
    (PERSON, {**ANA, "note": "too long"}),
    ({"type": "object", "properties": {"a": {"type": "integer"}}, "additionalProperties": True}, {"a": "x"}),
]


@pytest.mark.parametrize(("schema", "value"), WRONG, ids=lambda value: json.dumps(value)[:40])
def test_wrong_values_are_out_of_reach(bytewise, schema, value) -> None:
    program = bytewise.program(schema_rules(schema))
    assert not bytewise.accepts(program, json.dumps(value))


@pytest.mark.parametrize(
    "text", ['"\t"', '"\\ud83d"', b'"\xed\xa0\x80"', b'"\xff"', '"\\x"', "'a'", '"a', ' "a"', '"a" ']
)
def test_strings_are_what_every_reader_reads(bytewise, text) -> None:
    for schema in ({"type": "string"}, {"type": "string", "maxLength": 4}, {"type": "string", "pattern": "^.{0,4}$"}):
        assert not bytewise.accepts(bytewise.program(schema_rules(schema)), text)


def test_a_repeated_name_cannot_smuggle_a_wrong_value_in(bytewise) -> None:
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}, "additionalProperties": {"type": "string"}}
    program = bytewise.program(schema_rules(schema))
    assert bytewise.accepts(program, '{"a": 1, "b": "x", "aa": "y"}')
    for text in ('{"a": 1, "a": "x"}', '{"a": 1, "\\u0061": "x"}', '{"b": "x", "a": "x"}'):
        assert not bytewise.accepts(program, text)


def test_spaces_are_bounded(bytewise) -> None:
    program = bytewise.program(any_json_rules())
    assert bytewise.accepts(program, '{\n    "a": [\n' + " " * 20 + "1]}")
    assert not bytewise.accepts(program, '{  "a": 1}')
    assert not bytewise.accepts(program, '{\n\n"a": 1}')
    assert not bytewise.accepts(program, "{\n" + " " * 21 + '"a": 1}')


REFUSED = [
    ({"type": "foo"}, "type"),
    ({"$ref": "#/$defs/nope"}, "$ref"),
    ({"$ref": "#"}, "$ref"),
    ({"$ref": "https://example.org/schema"}, "$ref"),
    ({"type": "array", "items": [{"type": "string"}]}, "items"),
    ({"type": "array", "uniqueItems": True}, "uniqueItems"),
    ({"type": "array", "contains": {"type": "string"}}, "contains"),
    ({"not": {"type": "string"}}, "not"),
    ({"if": {"type": "string"}, "then": {"minLength": 1}}, "if"),
    ({"type": "object", "dependentRequired": {"a": ["b"]}}, "dependentRequired"),
    ({"type": "object", "properties": {"a": {"multipleOf": 0.1}}}, "multipleOf"),
    ({"type": "integer", "multipleOf": 3, "minimum": 5}, "multipleOf"),
    ({"type": "string", "pattern": "(?=a)b"}, "pattern"),
    ({"type": "string", "pattern": "^a*b*$", "maxLength": 3}, "pattern"),
    ({"type": "string", "format": "regex"}, "format"),
    ({"type": "string", "minLenght": 3}, "minLenght"),
    ({"type": "string", "nullable": True}, "nullable"),
    ({"oneOf": [{"type": "integer"}, {"type": "number"}]}, "oneOf"),
    ({"type": "string", "minLength": -1}, "minLength"),
    ({"type": "number", "minimum": "3"}, "minimum"),
    ({"enum": ["abc"], "maxLength": 2}, "maxLength"),
    ({"allOf": [{"pattern": "^a"}, {"pattern": "b$"}], "type": "string"}, "pattern"),
    ({"$dynamicRef": "#a"}, "$dynamicRef"),
]


@pytest.mark.parametrize(("schema", "word"), REFUSED, ids=lambda value: json.dumps(value)[:50])
def test_what_cannot_be_enforced_is_refused_by_name(schema, word) -> None:
    with pytest.raises(Unsupported, match="'" + word.replace("$", "\\$") + "'"):
        schema_rules(schema)


@pytest.mark.parametrize(
    "schema",
    [
        False,
        {"type": "object", "properties": {"a": False}, "required": ["a"]},
        {"allOf": [{"type": "null"}, {"type": "string"}]},
    ],
)
def test_a_schema_that_no_value_meets_is_refused(schema) -> None:
    with pytest.raises(Unsupported, match="no value"):
        schema_rules(schema)


def nested(depth: int) -> dict:
    schema: dict = {"type": "null"}
    for _ in range(depth):
        schema = {"type": "array", "items": schema}
    return schema


LARGE = [
    nested(200),
    {"enum": [str(number) for number in range(MAX_ENUM_VALUES + 1)]},
    {"type": "object", "properties": {f"p{number}": True for number in range(MAX_PROPERTIES + 1)}},
    {"description": "x" * 70_000},
    {"allOf": [{"anyOf": [{"minimum": number}, {"maximum": number}]} for number in range(40)]},
    {"type": "object", "properties": {"a": {"type": "object", "anyOf": [{"$ref": "#"}]}}},
    {"type": "object", "anyOf": [{"$ref": "#"}, {"required": ["a"]}]},
    {"allOf": [{"$ref": "#"}, {"type": "null"}]},
    {"anyOf": [{"allOf": [{"$ref": "#"}, True]}]},
    {"$ref": "#/$defs/a", "$defs": {"a": {"type": "object", "oneOf": [{"$ref": "#/$defs/a"}]}}},
    {
        "$ref": "#/$defs/0",
        "$defs": {str(n): {"type": "array", "items": {"$ref": f"#/$defs/{n + 1}"}} for n in range(900)},
    },
]


@pytest.mark.parametrize("schema", LARGE, ids=lambda value: str(value)[:40])
def test_large_schemas_are_refused_at_once(schema) -> None:
    with pytest.raises((TooComplex, Unsupported)):
        schema_rules(schema)


def work(schema: dict) -> int:
    """Calls of functions, Python's and C's, while the schema becomes rules: the server reads nothing meanwhile."""
    num_calls = 0

    def count(frame, event, argument) -> None:
        nonlocal num_calls
        num_calls += event in ("call", "c_call")

    sys.setprofile(count)
    try:
        schema_rules(schema)
    finally:
        sys.setprofile(None)
    return num_calls


def told_by_a_const(number: int) -> dict:
    return {"type": "object", "properties": {"k": {"const": str(number)}, "v": {"type": "string"}}, "required": ["k"]}


LARGE = {
    "options": lambda size: {"oneOf": [told_by_a_const(number) for number in range(size)]},
    "formats": lambda size: {"properties": {f"p{n}": {"type": "string", "format": "uri"} for n in range(size)}},
    "bounds": lambda size: {"properties": {f"p{n}": {"type": "integer", "minimum": n} for n in range(size)}},
}


@pytest.mark.parametrize("make", LARGE.values(), ids=LARGE)
def test_work_grows_with_the_schema_and_stays_small(make) -> None:
    small, large = work(make(90)), work(make(360))
    assert large < 5 * small
    assert large < 200_000, "hundreds of milliseconds, in which no stream goes on"


def test_options_that_must_be_compared_one_by_one_are_bounded() -> None:
    def option(number: int) -> dict:
        return {"required": [f"p{number}"], "properties": {"k": {"const": number}, f"p{number}": {}}}

    with pytest.raises(Unsupported, match="oneOf"):
        schema_rules({"oneOf": [option(0), option(1)]})
    with pytest.raises(TooComplex, match="options"):
        schema_rules({"oneOf": [option(number) for number in range(300)]})
