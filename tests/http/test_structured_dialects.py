"""Schemas and enforced calls in every dialect, with its own SDK, against a whole server."""

import json

import anthropic
import ollama
import openai
import pytest

from tests.http.client import chat, post, tape

pytestmark = pytest.mark.server

SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string", "enum": ["Ana", "陈😀"]}, "age": {"type": "integer", "maximum": 9}},
    "required": ["name", "age"],
    "additionalProperties": False,
}
GOOD = '{"name": "陈😀", "age": 7}'
SAID = [GOOD, "Certainly! Here it is.", '{"name": "Bob", "age": 99}']
LOOK = {"type": "object", "properties": {"city": {"type": "string", "maxLength": 5}}, "required": ["city"]}
GREEDY = {"temperature": 0}


def check(text: str, said: str) -> None:
    value = json.loads(text)
    assert set(value) == {"name", "age"}
    assert value["name"] in ("Ana", "陈😀")
    assert value["age"] <= 9
    if said == GOOD:
        assert text == GOOD


@pytest.mark.parametrize("said", SAID)
def test_schemas_of_responses(whole_tape, said) -> None:
    client = openai.OpenAI(base_url=f"{whole_tape.url}/v1", api_key="none")
    wanted = {"format": {"type": "json_schema", "name": "person", "strict": True, "schema": SCHEMA}}
    asked = {"model": "tape", "input": tape(said), "text": wanted, "temperature": 0, "max_output_tokens": 200}
    answer = client.responses.create(**asked)
    assert answer.status == "completed"
    check(answer.output_text, said)
    with client.responses.stream(**asked) as stream:
        for _ in stream:
            pass
        assert stream.get_final_response().output_text == answer.output_text


@pytest.mark.parametrize("said", SAID)
def test_schemas_of_messages(whole_tape, said) -> None:
    client = anthropic.Anthropic(base_url=whole_tape.url, api_key="none")
    wanted = {"format": {"type": "json_schema", "schema": SCHEMA}}
    messages = [{"role": "user", "content": tape(said)}]
    answer = client.messages.create(
        model="tape", max_tokens=200, messages=messages, output_config=wanted, extra_body=GREEDY
    )
    assert answer.stop_reason == "end_turn"
    check(answer.content[0].text, said)


@pytest.mark.parametrize("said", SAID)
def test_a_schema_beside_json_object_holds_too(whole_tape, said) -> None:
    wanted = {"type": "json_object", "schema": SCHEMA}
    answer = chat(whole_tape, tape(said), response_format=wanted, max_tokens=200)
    check(answer.json()["choices"][0]["message"]["content"], said)
    assert "x-ignored-fields" not in answer.headers


NAMED = {"name": "n", "schema": SCHEMA}


@pytest.mark.parametrize(
    ("path", "body", "ignored"),
    [
        (
            "/v1/chat/completions",
            {"response_format": {"type": "json_schema", "json_schema": {**NAMED, "a": 1}, "schema": {}}},
            "response_format.schema, response_format.json_schema.a",
        ),
        ("/v1/completions", {"response_format": {"type": "json_object", "b": 1}}, "response_format.b"),
        (
            "/generate",
            {"sampling_params": {"response_format": {"type": "text", "schema": SCHEMA}, **GREEDY}},
            "sampling_params.response_format.schema",
        ),
        (
            "/v1/messages",
            {"output_config": {"format": {"type": "json_schema", "schema": SCHEMA, "name": "x"}}},
            "output_config.format.name",
        ),
    ],
    ids=str,
)
def test_members_of_formats_that_nobody_reads_are_named(whole_tape, path, body, ignored) -> None:
    prompt = {"/v1/completions": {"prompt": tape("{}")}, "/generate": {"text": tape("{}")}}
    asked = prompt.get(path, {"messages": [{"role": "user", "content": tape(GOOD)}]})
    limit = {} if path == "/generate" else {"max_tokens": 200, **GREEDY}
    answer = post(whole_tape, path, {**asked, **limit, **body})
    assert (answer.status_code, answer.headers["x-ignored-fields"]) == (200, ignored)


@pytest.mark.parametrize("said", SAID)
def test_schemas_of_ollama(whole_tape, said) -> None:
    client = ollama.Client(host=whole_tape.url)
    options = {**GREEDY, "num_predict": 200}
    check(client.generate(model="tape", prompt=tape(said), format=SCHEMA, options=options).response, said)
    messages = [{"role": "user", "content": tape(said)}]
    check(client.chat(model="tape", messages=messages, format=SCHEMA, options=options).message.content, said)


def test_ollamas_json(whole_tape) -> None:
    answer = ollama.Client(host=whole_tape.url).generate(
        model="tape", prompt=tape('{"a": [1, "b"]}'), format="json", options=GREEDY
    )
    assert json.loads(answer.response) == {"a": [1, "b"]}


ENFORCED = [
    (
        "/v1/responses",
        {"input": tape("Certainly!"), "max_output_tokens": 200},
        {"type": "function", "name": "look", "parameters": LOOK},
        ["required", {"type": "function", "name": "look"}],
    ),
    (
        "/v1/messages",
        {"messages": [{"role": "user", "content": tape("Certainly!")}], "max_tokens": 200},
        {"name": "look", "input_schema": LOOK},
        [{"type": "any"}, {"type": "tool", "name": "look"}],
    ),
]


@pytest.mark.parametrize(("path", "body", "tool", "choices"), ENFORCED, ids=["responses", "messages"])
def test_enforced_calls(whole_tape, path, body, tool, choices) -> None:
    for choice in choices:
        answer = post(whole_tape, path, {**body, "tools": [tool], "tool_choice": choice, **GREEDY})
        assert answer.status_code == 200, answer.text
        made = answer.json()
        if path == "/v1/responses":
            (call,) = [item for item in made["output"] if item["type"] == "function_call"]
            arguments = json.loads(call["arguments"])
        else:
            assert made["stop_reason"] == "tool_use"
            (call,) = [block for block in made["content"] if block["type"] == "tool_use"]
            arguments = call["input"]
        assert (call["name"], set(arguments)) == ("look", {"city"})
        assert len(arguments["city"]) <= 5


BAD = {"type": "json_schema", "schema": {"type": "foo"}}
MESSAGES = [{"role": "user", "content": "q"}]
REFUSED = [
    ("/v1/responses", {"input": "q", "text": {"format": {"name": "x", **BAD}}}, "text"),
    ("/v1/messages", {"messages": MESSAGES, "max_tokens": 5, "output_config": {"format": BAD}}, "output_config"),
    ("/api/generate", {"prompt": "q", "format": BAD["schema"]}, "format"),
]


@pytest.mark.parametrize(("path", "body", "named"), REFUSED, ids=["responses", "messages", "ollama"])
def test_schemas_that_cannot_be_enforced_are_refused_by_the_clients_own_name(whole_tape, path, body, named) -> None:
    answer = post(whole_tape, path, body)
    assert answer.status_code == 400
    assert f"`{named}" in answer.text
