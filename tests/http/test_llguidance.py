"""A server whose grammars llguidance follows, while n-grams draft."""

import json

import jsonschema
import pytest

from tests.http.client import chat, tape

pytestmark = pytest.mark.server

SCHEMA = {
    "type": "object",
    "properties": {
        "who": {"enum": ["Ana", "Бо", "陈😀"]},
        "code": {"type": "string", "pattern": "^[A-Z]{2}-[0-9]{3}$"},
        "age": {"type": "integer", "minimum": 0, "maximum": 120},
        "next": {"anyOf": [{"$ref": "#"}, {"type": "null"}]},
    },
    "required": ["who", "code", "age", "next"],
    "additionalProperties": False,
}
FORMAT = {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA, "strict": True}}}
INSIDE = {"who": "陈😀", "code": "AB-123", "age": 7, "next": None}
SAID = [INSIDE | {"next": INSIDE}, {"who": "Zed", "code": "ab-1", "age": 121, "more": 1}, "free prose"]


@pytest.fixture(scope="module")
def server(serving):
    drafting = ("--speculative-algorithm", "NGRAM", "--speculative-num-draft-tokens", "5")
    with serving("corymb/tape", "--context-length", "1024", "--grammar-backend", "llguidance", *drafting) as server:
        yield server


@pytest.mark.parametrize("said", SAID, ids=["valid", "invalid", "prose"])
def test_an_answer_follows_its_schema(server, said) -> None:
    text = json.dumps(said, ensure_ascii=False)
    choice = chat(server, tape(text), max_tokens=400, **FORMAT).json()["choices"][0]
    assert choice["finish_reason"] == "stop"
    answer = json.loads(choice["message"]["content"])
    jsonschema.validate(answer, SCHEMA)
    assert answer == said or said is not SAID[0]


@pytest.mark.parametrize(
    ("fields", "said", "expected"),
    [
        ({"regex": "[0-9]{4}"}, "12ab", "12"),
        ({"regex": "(ab ){3}"}, "ab ab ab ab ab", "ab ab ab "),
        ({"ebnf": 'root ::= "yes" | "no" " "{2} [^\\u0000-\\u007f]'}, "no  é", "no  é"),
        ({"response_format": {"type": "json_object"}}, '{"a": [1, "é"]}', '{"a": [1, "é"]}'),
    ],
)
def test_it_follows_patterns_and_rules(server, fields, said, expected) -> None:
    choice = chat(server, tape(said), max_tokens=60, **fields).json()["choices"][0]
    assert choice["message"]["content"].startswith(expected)
    assert choice["finish_reason"] == "stop"


def test_what_it_cannot_follow_is_refused_in_a_sentence(server) -> None:
    tags = {"type": "structural_tag", "format": {"type": "const_string", "value": "x"}}
    refused = chat(server, tape("x"), response_format=tags)
    assert refused.status_code == 400
    assert "--grammar-backend xgrammar" in refused.json()["error"]["message"]
    broken = chat(server, tape("x"), ebnf='root ::= "a')
    assert broken.status_code == 400
