"""Structured output on a whole server: every route, every way to ask, and what hostile grammars do to others."""

import json
import re
import statistics
import time

import httpx
import jsonschema
import pytest

from tests.http.client import at_once, chat, complete, events, finish_of, native, post, refused, tape, text_of

pytestmark = pytest.mark.server

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
    "$defs": {"W": {"type": "string", "enum": ["Ana", "Бо", "陈😀"]}},
}
FORMAT = {"type": "json_schema", "json_schema": {"name": "person", "strict": True, "schema": PERSON}}
INNER = {"who": "Ana", "note": None, "code": "XX-000", "age": 0, "next": None}
GOOD = json.dumps({"who": "陈😀", "note": "é", "code": "AB-123", "age": 120, "next": INNER}, ensure_ascii=False)
BAD = '{"who": "Zed", "note": "too long", "code": "ab-1", "age": 121, "extra": 1}'
PROSE = "Sure! Here is what you asked for, as JSON and with all its fields."


def validate(text: str) -> None:
    jsonschema.Draft202012Validator(PERSON).validate(json.loads(text))


@pytest.mark.parametrize("stream", [False, True])
def test_a_valid_answer_comes_out_as_it_is(whole_tape, stream) -> None:
    response = chat(whole_tape, tape(GOOD), response_format=FORMAT, stream=stream)
    if stream:
        assert text_of(events(response)) == GOOD
        assert finish_of(events(response))["finish_reason"] == "stop"
        return
    (choice,) = response.json()["choices"]
    assert (choice["message"]["content"], choice["finish_reason"]) == (GOOD, "stop")


@pytest.mark.parametrize("said", [BAD, PROSE, ""])
def test_whatever_the_model_wants_to_say_validates(whole_tape, said) -> None:
    for extra in ({}, {"temperature": 1.5, "seed": 3}, {"frequency_penalty": 1.0, "logit_bias": {"34": -50}}):
        answer = chat(whole_tape, tape(said), response_format=FORMAT, n=2, max_tokens=400, **extra).json()
        for choice in answer["choices"]:
            if choice["finish_reason"] == "stop":
                validate(choice["message"]["content"])
            assert choice["finish_reason"] in ("stop", "length")


def test_a_truncated_answer_says_length(whole_tape) -> None:
    (choice,) = chat(whole_tape, tape(GOOD), response_format=FORMAT, max_tokens=20).json()["choices"]
    assert choice["finish_reason"] == "length"
    assert GOOD.startswith(choice["message"]["content"])


ASKS = [
    ("é😀", {"regex": "[^\\x00-\\x7f]{2}"}, "é😀"),
    ("maybe", {"ebnf": 'root ::= "yes" | "no"'}, "no"),
    ("yes and no", {"guided_choice": ["yes", "no"]}, "yes"),
    ('{"a": 1}', {"json_schema": json.dumps({"type": "object", "properties": {"a": {"type": "integer"}}})}, '{"a": 1}'),
    ("12", {"guided_regex": "\\d+"}, "12"),
    ("[true]", {"structured_outputs": {"json": {"type": "array", "items": {"type": "boolean"}}}}, "[true]"),
    ('{"b": []}', {"response_format": {"type": "json_object"}}, '{"b": []}'),
]


@pytest.mark.parametrize(("said", "fields", "expected"), ASKS, ids=lambda value: str(value)[:30])
def test_every_route_takes_every_way_to_ask(whole_tape, said, fields, expected) -> None:
    assert chat(whole_tape, tape(said), **fields).json()["choices"][0]["message"]["content"] == expected
    assert complete(whole_tape, tape(said), max_tokens=64, **fields).json()["choices"][0]["text"] == expected
    assert native(whole_tape, tape(said), fields).json()["text"] == expected


def test_a_structural_tag_holds_its_schema_and_leaves_the_rest_free(whole_tape) -> None:
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
    tag = {"begin": "<f>", "content": {"type": "json_schema", "json_schema": schema}, "end": "</f>"}
    wanted = {"type": "structural_tag", "format": {"type": "triggered_tags", "triggers": ["<f>"], "tags": [tag]}}
    said = 'hello <f>{"a": 1}</f> and more'
    older = {"structures": [{"begin": "<f>", "schema": schema, "end": "</f>"}], "triggers": ["<f>"]}
    older_format = {"response_format": {"type": "structural_tag", **older}}
    for fields in ({"response_format": wanted}, {"structural_tag": json.dumps(wanted)}, older_format):
        assert chat(whole_tape, tape(said), **fields).json()["choices"][0]["message"]["content"] == said
    broken = chat(whole_tape, tape('hello <f>{"a": "x"}</f>'), response_format=wanted, max_tokens=200)
    text = broken.json()["choices"][0]["message"]["content"]
    assert re.match(r'hello <f>\{\s*"a":\s*-?\d', text)


def test_the_end_waits_for_min_tokens_where_it_can(whole_tape) -> None:
    for least, expected in ((1, "no"), (50, "no")):
        answer = complete(whole_tape, tape("maybe"), regex="yes|no", min_tokens=least, max_tokens=60).json()
        assert (answer["choices"][0]["text"], answer["choices"][0]["finish_reason"]) == (expected, "stop")
    answer = complete(whole_tape, tape("1"), regex="\\d+", min_tokens=5, max_tokens=60).json()["choices"][0]
    assert answer["finish_reason"] == "stop"
    assert len(answer["text"]) >= 5


def test_logprobs_are_those_of_the_model(whole_tape) -> None:
    body = {"regex": "yes|no", "logprobs": True, "top_logprobs": 1}
    (choice,) = chat(whole_tape, tape("nx"), **body).json()["choices"]
    entries = choice["logprobs"]["content"]
    assert [entry["token"] for entry in entries] == ["n", "o", "<eos>"]
    assert entries[0]["logprob"] == pytest.approx(-0.32, abs=0.01)
    assert entries[1]["logprob"] == pytest.approx(-10.3, abs=0.1)
    assert entries[1]["top_logprobs"][0]["token"] == "x"


BROKEN = [
    ({"regex": "("}, "regex", "position"),
    ({"regex": "a{2,1}"}, "regex", "position"),
    ({"regex": "(?=a)b"}, "regex", "position"),
    ({"json_schema": {"type": "foo"}}, "json_schema", "'type'"),
    ({"json_schema": {"$ref": "#/$defs/nope"}}, "json_schema", "'[$]ref'"),
    ({"json_schema": False}, "json_schema", "no value"),
    ({"json_schema": "{"}, "json_schema", "JSON"),
    ({"ebnf": "root ::= foo"}, "ebnf", "foo"),
    ({"ebnf": "root ::="}, "ebnf", "position|line"),
    ({"ebnf": 'root ::= "a" | "b" c\nc ::= "d" c'}, "ebnf", "'c' never ends"),
    ({"json_schema": {}, "regex": "a"}, "regex", "exclude"),
    ({"response_format": {"type": "json_schema", "json_schema": {"name": "x"}}}, "response_format", "schema"),
    ({"structural_tag": {"type": "structural_tag", "format": {"type": "nope"}}}, "structural_tag", "."),
    ({"guided_choice": []}, "guided_choice", "1"),
]


@pytest.mark.parametrize(("fields", "param", "words"), BROKEN, ids=lambda value: str(value)[:40])
def test_a_grammar_that_cannot_be_followed_is_a_400(whole_tape, fields, param, words) -> None:
    error = refused(chat(whole_tape, tape("a"), **fields), 400)
    assert error["param"].startswith(param)
    assert re.search(words, error["message"]), error["message"]


def nested(depth: int) -> dict:
    schema: dict = {"type": "null"}
    for _ in range(depth):
        schema = {"type": "array", "items": schema, "maxItems": 3}
    return schema


HOSTILE = [
    {"json_schema": nested(200)},
    {"regex": "|".join(f"a{number}" for number in range(20_000))},
    {"json_schema": {"enum": [f"value {number}" for number in range(20_000)]}},
    {"regex": "((a{0,100}){0,100}){0,100}b"},
    {"ebnf": 'root ::= root root | "a" | ""'},
    {"ebnf": "root ::= " + " ".join(f"([a-z]{{0,{900 + number}}})" for number in range(60))},
    {"json_schema": {"type": "string", "pattern": "^([a-z]{0,900}[0-9]{0,900}){0,900}$"}},
    {"json_schema": {"oneOf": [{"properties": {"k": {"const": n}}, "required": ["k"]} for n in range(900)]}},
    {"json_schema": {"properties": {f"p{n}": {"type": "string", "format": "uri"} for n in range(900)}}},
]


def test_hostile_grammars_cost_others_nothing(whole_tape) -> None:
    pid = whole_tape.children["scheduler"].pid

    def gaps() -> list[float]:
        found = []
        with whole_tape.client.stream(
            "POST", "/v1/completions", json={"prompt": tape("x" * 150), "max_tokens": 150, "stream": True}
        ) as response:
            last_s = None
            for _ in response.iter_lines():
                now_s = time.monotonic()
                found += [] if last_s is None else [now_s - last_s]
                last_s = now_s
        return found

    def attack(fields):
        begun_s = time.monotonic()
        response = chat(whole_tape, tape("aab"), max_tokens=8, **fields)
        while response.status_code == 503 and time.monotonic() - begun_s < 60:  # others are being compiled: later, then
            time.sleep(0.2)
            response = chat(whole_tape, tape("aab"), max_tokens=8, **fields)
        return response, time.monotonic() - begun_s

    chat(whole_tape, tape("1"), regex="\\d")  # the compiler is up
    quiet = statistics.quantiles(gaps() + gaps(), n=100)[98]
    *answers, during = at_once([*(lambda fields=fields: attack(fields) for fields in HOSTILE), lambda: gaps() + gaps()])
    for response, seconds in answers:
        assert response.status_code in (200, 400), response.text
        if response.status_code == 400:
            assert refused(response, 400)["code"] in ("grammar_too_complex", "invalid_value")
        assert seconds < 60
    # Two cores, of which the compiler takes one: the bound is for what a blocked loop would show, hundreds of ms.
    assert statistics.quantiles(during, n=100)[98] < max(2 * quiet, 0.1)
    assert whole_tape.children["scheduler"].pid == pid
    assert complete(whole_tape, tape("still here"), max_tokens=20).json()["choices"][0]["text"] == "still here"


def test_a_client_that_leaves_ends_its_compilation(whole_tape) -> None:
    slow = "".join(f"([a-z]{{0,{950 + number}}})" for number in range(40))
    with pytest.raises(httpx.ReadTimeout):
        post(whole_tape, "/v1/completions", {"prompt": "a", "regex": slow}, timeout=0.5)
    begun_s = time.monotonic()
    assert complete(whole_tape, tape("7"), regex="[6-8]").json()["choices"][0]["text"] == "7"
    assert time.monotonic() - begun_s < 4


def test_a_prompt_and_its_grammar_are_cached(whole_tape) -> None:
    def compiled() -> float:
        text = whole_tape.client.get("/metrics").text
        return float(re.search(r"^corymb_grammars_compiled_total\S* (\S+)", text, re.MULTILINE)[1])

    fields = {"regex": "cached|not"}
    complete(whole_tape, tape("cached"), **fields)
    before = compiled()
    answers = at_once([lambda: complete(whole_tape, tape("cached"), **fields).json() for _ in range(6)])
    assert {answer["choices"][0]["text"] for answer in answers} == {"cached"}
    assert compiled() == before
    assert answers[0]["usage"]["prompt_tokens_details"]["cached_tokens"] > 0


def test_memory_pressure_changes_no_answer(serving) -> None:
    def answers(server):
        def one(number):
            fields = {"regex": "[a-z]{30,90}x"} if number % 2 else {"frequency_penalty": 0.5}
            return complete(server, f"prompt {number}", max_tokens=64, logprobs=1, **fields).json()

        return at_once([lambda number=number: one(number) for number in range(16)])

    with serving("corymb/hash", "--max-total-tokens", "256") as small, serving("corymb/hash") as large:
        tight, roomy = answers(small), answers(large)
        retracted = re.search(r"^corymb_retractions_total\S* (\S+)", small.client.get("/metrics").text, re.MULTILINE)
    assert float(retracted[1]) > 0
    for one, other in zip(tight, roomy, strict=True):
        assert one["choices"][0]["text"] == other["choices"][0]["text"]
        assert len(one["choices"][0]["logprobs"]["tokens"]) == one["usage"]["completion_tokens"]


def test_a_server_without_a_back_end_says_so(serving) -> None:
    with serving("corymb/tape", "--grammar-backend", "none") as server:
        assert "no grammars" in server.log
        error = refused(chat(server, tape("a"), regex="a"), 400, param="regex", code="unsupported_parameter")
        assert "corymb[grammar]" in error["message"]
        assert chat(server, tape("a")).status_code == 200


WEATHER = {
    "type": "object",
    "properties": {
        "city": {"type": "string", "maxLength": 20},
        "days": {"type": "integer", "minimum": 1, "maximum": 9},
    },
    "required": ["city", "days"],
    "additionalProperties": False,
}
CALL = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Oslo", "days": 3}}\n</tool_call>'


@pytest.fixture(scope="module")
def agent_server(serving):
    with serving("corymb/tape", "--tool-call-parser", "hermes", "--reasoning-parser", "qwen3") as server:
        yield server


def tools(*, strict: bool) -> list[dict]:
    function = {"name": "get_weather", "strict": strict, "parameters": WEATHER}
    return [{"type": "function", "function": function}]


@pytest.mark.parametrize("said", [CALL, "no calls from me", "<think>hm</think>\n" + CALL])
def test_a_required_call_is_made_and_its_arguments_validate(agent_server, said) -> None:
    for choice in ("required", {"type": "function", "function": {"name": "get_weather"}}):
        answer = chat(agent_server, tape(said), tools=tools(strict=False), tool_choice=choice, max_tokens=400).json()
        (found,) = answer["choices"]
        assert found["finish_reason"] in ("tool_calls", "length")
        for call in found["message"]["tool_calls"]:
            assert call["function"]["name"] == "get_weather"
            if found["finish_reason"] == "tool_calls":
                jsonschema.validate(json.loads(call["function"]["arguments"]), WEATHER)


def test_a_strict_function_holds_the_calls_that_the_model_chooses_to_make(agent_server) -> None:
    answer = chat(agent_server, tape("text first " + CALL.replace("3", "30")), tools=tools(strict=True), max_tokens=200)
    (found,) = answer.json()["choices"]
    assert found["message"]["content"] == "text first"
    (call,) = found["message"]["tool_calls"]
    jsonschema.validate(json.loads(call["function"]["arguments"]), WEATHER)
    plain = chat(agent_server, tape("text only"), tools=tools(strict=True)).json()["choices"][0]
    assert (plain["message"]["content"], plain["finish_reason"]) == ("text only", "stop")


def test_a_format_begins_when_reasoning_has_ended(agent_server) -> None:
    said = '<think>let me {think} first</think>{"a": 1}'
    (found,) = chat(agent_server, tape(said), response_format={"type": "json_object"}).json()["choices"]
    assert found["message"]["reasoning_content"] == "let me {think} first"
    assert found["message"]["content"] == '{"a": 1}'


def test_a_format_holds_from_the_first_character_where_no_reasoning_comes(agent_server) -> None:
    for stream in (False, True):
        answer = chat(agent_server, tape("\n\nmaybe"), regex="yes|no", stream=stream)
        content = text_of(events(answer)) if stream else answer.json()["choices"][0]["message"]["content"]
        assert content in ("yes", "no")
    (found,) = chat(agent_server, tape("<think>hm</think>\n\nno"), regex="yes|no").json()["choices"]
    assert (found["message"]["reasoning_content"], found["message"]["content"]) == ("hm", "no")


COMPILED = [
    ({"ebnf": "root ::= foo"}, "ebnf"),
    ({"guided_grammar": "root ::= foo"}, "guided_grammar"),
    ({"structured_outputs": {"grammar": "root ::= foo"}}, "structured_outputs.grammar"),
    ({"response_format": {"type": "structural_tag", "format": {"type": "nope"}}}, "response_format"),
]


@pytest.mark.parametrize(("fields", "param"), COMPILED, ids=lambda value: str(value)[:40])
@pytest.mark.parametrize("kind", ["whole_tape", "agent_server"])
def test_what_only_compiling_shows_is_refused_by_the_name_the_client_sent(request, kind, fields, param) -> None:
    server = request.getfixturevalue(kind)
    for _ in range(2):  # the second time it is remembered
        error = refused(chat(server, tape("a"), **fields), 400, param=param)
        assert f"`{param}`" in error["message"]
    if "response_format" not in fields:
        refused(native(server, tape("a"), fields), 400, param=f"sampling_params.{param}")


def test_an_answer_that_begins_with_white_space_keeps_it_behind_a_thought(agent_server) -> None:
    for fields in ({"regex": " (yes|no)"}, {"guided_choice": [" yes", " no"]}, {"ebnf": 'root ::= " " ("yes" | "no")'}):
        for said in ("<think>hm</think> yes", " yes"):
            (found,) = chat(agent_server, tape(said), **fields).json()["choices"]
            assert found["message"]["content"] == " yes", (fields, said)
        chunks = events(chat(agent_server, tape("<think>hm</think> yes"), stream=True, **fields))
        assert text_of(chunks) == " yes"


@pytest.mark.parametrize(
    ("fields", "right"),
    [
        ({"regex": "yes|no"}, {"yes", "no"}),
        ({"ebnf": 'root ::= "yes" | "no"'}, {"yes", "no"}),
        ({"guided_choice": ["Zed", "yes"]}, {"Zed", "yes"}),
        ({"json_schema": {"enum": [1, "a"]}}, {"1", '"a"'}),
    ],
)
def test_a_model_that_does_not_care_does_not_slip_into_a_thought(agent_server, fields, right) -> None:
    """Where all that may come is as likely, the answer begins: no mark is spelled out letter by letter."""
    for said in ("Q", "", "<", "\n\n"):
        (found,) = chat(agent_server, tape(said), max_tokens=30, **fields).json()["choices"]
        assert found["message"].get("reasoning_content") is None, found
        assert (found["message"]["content"] in right, found["finish_reason"]) == (True, "stop"), found


def test_a_grammar_without_a_way_on_is_a_400_behind_reasoning_too(agent_server) -> None:
    for rules in ("root ::= root", 'root ::= "a" b\nb ::= b'):
        assert "never ends" in refused(chat(agent_server, tape("abc"), ebnf=rules), 400)["message"]


def test_a_function_whose_schema_cannot_be_enforced_is_refused_only_where_it_must_be(agent_server) -> None:
    loose = [{"type": "function", "function": {"name": "f", "parameters": {"not": {"type": "string"}}}}]
    assert chat(agent_server, tape("a"), tools=loose).status_code == 200
    refused(chat(agent_server, tape("a"), tools=loose, tool_choice="required"), 400, code="unsupported_schema")
