"""Calls that were asked for are made, whatever the model would rather say. Over whole servers: grammars need them."""

import json

import pytest

from tests.http.client import chat, events, finish_of, tape, text_of
from tests.http.test_tools import TOOLS, WEATHER, ok

pytestmark = pytest.mark.server

# Prose with quotes late in it: whatever a grammar takes of it, strings come to an end.
PROSE = 'The weather in "Paris" is {fine}, I think. "x": "y" } and so on, "and" on, "and" on, "and" on, "and" on.'
NAMED = {"type": "function", "function": {"name": "get_weather"}}
STRICT = [{"type": "function", "function": WEATHER | {"strict": True}}]
WRONG = '<tool_call>\n{"name": "get_weather", "arguments": {"town": "X"}}\n</tool_call>'


@pytest.fixture(scope="module")
def server(serving):
    with serving("corymb/tape", "--reasoning-parser", "qwen3") as running:
        yield running


def check_weather(call: dict) -> None:
    assert call["function"]["name"] == "get_weather"
    arguments = json.loads(call["function"]["arguments"])
    assert isinstance(arguments["city"], str)


@pytest.mark.parametrize("choice", ["required", NAMED], ids=["required", "named"])
@pytest.mark.parametrize("thought", ["", "<think>No calls!</think>"])
def test_prose_becomes_a_call(server, choice, thought: str) -> None:
    fields = {"tools": TOOLS, "tool_choice": choice, "max_tokens": 500, "parallel_tool_calls": False}
    whole = ok(chat(server, tape(thought + PROSE), **fields))
    (call,) = whole["message"]["tool_calls"]
    check_weather(call)
    assert not whole["message"]["content"]
    assert whole["finish_reason"] == "tool_calls"
    assert whole["message"].get("reasoning_content", "") == ("No calls!" if thought else "")

    chunks = events(chat(server, tape(thought + PROSE), **fields, stream=True))
    pieces = [piece for chunk in chunks for piece in chunk["choices"][0]["delta"].get("tool_calls", [])]
    assert "".join(piece["function"]["arguments"] for piece in pieces) == call["function"]["arguments"]
    assert text_of(chunks) == ""
    assert finish_of(chunks)["finish_reason"] == "tool_calls"


def test_an_older_function_that_is_named_is_called(server) -> None:
    fields = {"functions": [WEATHER], "function_call": {"name": "get_weather"}, "max_tokens": 500}
    choice = ok(chat(server, tape(PROSE), **fields))
    check_weather({"function": choice["message"]["function_call"]})
    assert choice["finish_reason"] == "function_call"
    chunks = events(chat(server, tape(PROSE), **fields, stream=True))
    pieces = [chunk["choices"][0]["delta"].get("function_call", {}) for chunk in chunks]
    streamed = "".join(piece.get("arguments", "") for piece in pieces)
    assert streamed == choice["message"]["function_call"]["arguments"]
    assert finish_of(chunks)["finish_reason"] == "function_call"


def test_a_strict_function_is_called_by_its_schema(server) -> None:
    (loose,) = ok(chat(server, tape(WRONG), tools=TOOLS))["message"]["tool_calls"]
    assert json.loads(loose["function"]["arguments"]) == {"town": "X"}
    (strict,) = ok(chat(server, tape(WRONG), tools=STRICT, max_tokens=500))["message"]["tool_calls"]
    assert json.loads(strict["function"]["arguments"]) == {"city": "X"}
    assert ok(chat(server, tape("No call."), tools=STRICT))["message"]["content"] == "No call."


def test_one_call_ends_the_answer_where_several_are_not_wanted(server) -> None:
    call = WRONG.replace("town", "city")
    both = ok(chat(server, tape(f"{call}\n{call}"), tools=TOOLS))
    assert len(both["message"]["tool_calls"]) == 2
    one = ok(chat(server, tape(f"So:{call}\n{call}"), tools=TOOLS, parallel_tool_calls=False))
    assert len(one["message"]["tool_calls"]) == 1
    assert one["message"]["content"] == "So:"
    assert one["finish_reason"] == "tool_calls"


def test_an_answer_with_a_format_may_still_be_a_call(server) -> None:
    fields = {"tools": TOOLS, "response_format": {"type": "json_object"}, "max_tokens": 500}
    thought = "<think>a</think>"
    assert ok(chat(server, tape(f'{thought}{{"a": 1}}'), **fields))["message"]["content"] == '{"a": 1}'
    (call,) = ok(chat(server, tape(thought + WRONG), **fields))["message"]["tool_calls"]
    assert json.loads(call["function"]["arguments"]) == {"town": "X"}
    assert json.loads(ok(chat(server, tape(PROSE), **fields))["message"]["content"] or "{}") is not None


def test_a_schema_that_cannot_be_enforced_is_refused_by_its_keyword(server) -> None:
    parameters = {"type": "object", "properties": {"a": {"type": "string", "contentEncoding": "base64"}}}
    function = {"name": "f", "parameters": parameters}
    for fields in ({"tool_choice": "required"}, {}):
        tools = [{"type": "function", "function": function | ({} if fields else {"strict": True})}]
        response = chat(server, tape("x"), tools=tools, **fields)
        assert response.status_code == 400
        assert response.json()["error"]["param"] == "tools"
        assert "contentEncoding" in response.json()["error"]["message"]
    assert ok(chat(server, tape("x"), tools=[{"type": "function", "function": function}]))["message"]["content"] == "x"


def test_a_thought_that_is_too_long_is_ended(server) -> None:
    text = "<think>0123456789</think>Answer"
    choice = ok(chat(server, tape(text), max_thinking_tokens=5, max_tokens=14))
    # The tape goes on below the end that was written for it: one token of it is never said.
    assert choice["message"]["reasoning_content"] == "0123"
    assert choice["message"]["content"].startswith("56789")
    assert ok(chat(server, tape(text), max_thinking_tokens=50))["message"]["content"] == "Answer"
    assert ok(chat(server, tape("Plain answer"), max_thinking_tokens=3))["message"]["content"] == "Plain answer"
    strict = {"response_format": {"type": "json_object"}, "max_thinking_tokens": 4, "max_tokens": 60}
    choice = ok(chat(server, tape('<think>012345678{"a": 1}'), **strict))
    assert choice["message"]["reasoning_content"] == "012"
    assert json.loads(choice["message"]["content"]) == {"a": 1}


def test_a_limit_needs_a_server_that_knows_reasoning(simulated_tape) -> None:
    response = chat(simulated_tape, tape("x"), max_thinking_tokens=5)
    assert response.status_code == 400
    assert response.json()["error"]["param"] == "max_thinking_tokens"


@pytest.mark.parametrize(("parser", "text"), [("kimi_k2", "No."), ("gpt-oss", "<|channel|>c")])
def test_other_formats_can_be_required(serving, parser: str, text: str) -> None:
    tools = [{"type": "function", "function": {"name": "now", "parameters": {"enum": [{}]}}}]
    with serving("corymb/tape", "--tool-call-parser", parser) as server:
        choice = ok(chat(server, tape(text), tools=tools, tool_choice="required", max_tokens=200))
    call = choice["message"]["tool_calls"][0]
    assert call["function"] == {"name": "now", "arguments": "{}"}
