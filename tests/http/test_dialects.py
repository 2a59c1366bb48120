"""One model, one text with thought, words and calls: every dialect tells the same, streamed or not, by its own SDK."""

import json

import anthropic
import ollama
import openai
import pytest

from tests.http.client import post, tape
from tests.http.conftest import simulated

LOOKING = '<tool_call>{"name": "look", "arguments": {"city": "São Paulo"}}</tool_call>'
WAITING = '<tool_call>{"name": "wait", "arguments": {}}</tool_call>'
SAID = f"<think>Let me see.</think>I look it up.{LOOKING}\n{WAITING}"
THOUGHT, WORDS = "Let me see.", "I look it up."
LOOK = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
FUNCTIONS = [
    {"name": "look", "description": "Looks.", "parameters": LOOK},
    {"name": "wait", "description": "Waits.", "parameters": {"type": "object", "properties": {}}},
]
EXPECTED = [("look", {"city": "São Paulo"}), ("wait", {})]
GREEDY = {"temperature": 0}
NUM_REASONING = len(THOUGHT) + 2


@pytest.fixture(scope="module")
def server():
    with simulated("tape", tool_call_parser="qwen", reasoning_parser="qwen3") as server:
        yield server


def user(text: str) -> list[dict]:
    return [{"role": "user", "content": tape(text)}]


def test_chat(server) -> None:
    client = openai.OpenAI(base_url=f"{server.url}/v1", api_key="none")
    tools = [{"type": "function", "function": function} for function in FUNCTIONS]
    asked = {"model": "tape", "messages": user(SAID), "tools": tools, "temperature": 0}
    answer = client.chat.completions.create(**asked)
    (choice,) = answer.choices
    assert (choice.message.content, choice.message.reasoning_content) == (WORDS, THOUGHT)
    assert choice.finish_reason == "tool_calls"
    calls = [(call.function.name, json.loads(call.function.arguments)) for call in choice.message.tool_calls]
    assert calls == EXPECTED
    assert answer.usage.completion_tokens_details.reasoning_tokens == NUM_REASONING
    with client.chat.completions.stream(**asked) as stream:
        final = stream.get_final_completion()
    assert final.choices[0].message.content == WORDS
    assert [call.function.name for call in final.choices[0].message.tool_calls] == ["look", "wait"]


def test_responses(server) -> None:
    client = openai.OpenAI(base_url=f"{server.url}/v1", api_key="none")
    tools = [{"type": "function", **function} for function in FUNCTIONS]
    asked = {"model": "tape", "input": tape(SAID), "tools": tools, "temperature": 0}
    answer = client.responses.create(**asked)
    assert [item.type for item in answer.output] == ["reasoning", "message", "function_call", "function_call"]
    assert (answer.output[0].content[0].text, answer.output_text) == (THOUGHT, WORDS)
    assert [(item.name, json.loads(item.arguments)) for item in answer.output[2:]] == EXPECTED
    assert answer.usage.output_tokens_details.reasoning_tokens == NUM_REASONING
    with client.responses.stream(**asked) as stream:
        for _ in stream:
            pass
        final = stream.get_final_response()
    assert [item.type for item in final.output] == [item.type for item in answer.output]
    assert final.output_text == WORDS


def test_a_loop_of_calls_over_responses(server) -> None:
    client = openai.OpenAI(base_url=f"{server.url}/v1", api_key="none")
    tools = [{"type": "function", **function} for function in FUNCTIONS]
    first = client.responses.create(model="tape", input=tape(SAID), tools=tools, temperature=0)
    results = [
        {"type": "function_call_output", "call_id": item.call_id, "output": "sunny"}
        for item in first.output
        if item.type == "function_call"
    ]
    items = [*user(SAID), *(item.model_dump() for item in first.output), *results, *user("done")]
    assert client.responses.create(model="tape", input=items, tools=tools, temperature=0).output_text == "done"


def test_anthropic(server) -> None:
    client = anthropic.Anthropic(base_url=server.url, api_key="none")
    tools = [{**function, "input_schema": function["parameters"]} for function in FUNCTIONS]
    tools = [{name: value for name, value in tool.items() if name != "parameters"} for tool in tools]
    asked = {"model": "tape", "max_tokens": 500, "messages": user(SAID), "tools": tools, "extra_body": GREEDY}
    answer = client.messages.create(**asked)
    assert [block.type for block in answer.content] == ["thinking", "text", "tool_use", "tool_use"]
    assert (answer.content[0].thinking, answer.content[1].text, answer.stop_reason) == (THOUGHT, WORDS, "tool_use")
    assert [(block.name, block.input) for block in answer.content[2:]] == EXPECTED
    assert answer.usage.output_tokens_details.thinking_tokens == NUM_REASONING
    with client.messages.stream(**asked) as stream:
        final = stream.get_final_message()
    assert [block.type for block in final.content] == [block.type for block in answer.content]
    assert [(block.name, block.input) for block in final.content[2:]] == EXPECTED
    results = [
        {"type": "tool_result", "tool_use_id": block.id, "content": "sunny"}
        for block in final.content
        if block.type == "tool_use"
    ]
    turns = [
        *user(SAID),
        {"role": "assistant", "content": [block.model_dump(exclude_none=True) for block in final.content]},
        {"role": "user", "content": [*results, {"type": "text", "text": "go on"}]},
        {"role": "user", "content": tape("done")},
    ]
    last = client.messages.create(**asked | {"messages": turns})
    assert [block.text for block in last.content] == ["done"]


def test_anthropic_counts_tools_too(server) -> None:
    body = {"messages": [{"role": "user", "content": "q"}]}
    tools = [{"name": "look", "input_schema": LOOK}]
    plain = post(server, "/v1/messages/count_tokens", body).json()["input_tokens"]
    assert post(server, "/v1/messages/count_tokens", {**body, "tools": tools}).json()["input_tokens"] > plain


def test_ollama(server) -> None:
    client = ollama.Client(host=server.url)
    tools = [{"type": "function", "function": function} for function in FUNCTIONS]
    asked = {"model": "tape", "messages": user(SAID), "tools": tools, "options": GREEDY}
    answer = client.chat(**asked)
    assert (answer.message.content, answer.message.thinking) == (WORDS, THOUGHT)
    assert [(call.function.name, call.function.arguments) for call in answer.message.tool_calls] == EXPECTED
    pieces = list(client.chat(**asked, stream=True))
    assert "".join(piece.message.content or "" for piece in pieces) == WORDS
    assert "".join(piece.message.thinking or "" for piece in pieces) == THOUGHT
    calls = [call for piece in pieces for call in piece.message.tool_calls or []]
    assert [(call.function.name, call.function.arguments) for call in calls] == EXPECTED
    turns = [*user(SAID), answer.message.model_dump(exclude_none=True)]
    turns += [{"role": "tool", "content": "sunny", "tool_name": name} for name, _ in EXPECTED]
    assert client.chat(**asked | {"messages": [*turns, *user("done")]}).message.content == "done"
    told = client.generate(model="tape", prompt=tape("<think>hm</think>so"), options=GREEDY)
    assert (told.response, told.thinking) == ("so", "hm")


NO_CALLS = [
    ("/v1/responses", {"input": tape(SAID)}, {"tool_choice": "none"}),
    ("/v1/messages", {"messages": user(SAID), "max_tokens": 500}, {"tool_choice": {"type": "none"}}),
]


@pytest.mark.parametrize(("path", "body", "choice"), NO_CALLS, ids=lambda value: str(value)[:16])
def test_without_leave_to_call_the_text_of_a_call_is_text(server, path, body, choice) -> None:
    tools = [{"type": "function", **FUNCTIONS[0]}]
    if path == "/v1/messages":
        tools = [{"name": "look", "input_schema": LOOK}]
    answer = post(server, path, {**body, "tools": tools, **choice, **GREEDY})
    assert answer.status_code == 200, answer.text
    kinds = {item["type"] for item in answer.json().get("output", answer.json().get("content"))}
    assert not kinds & {"function_call", "tool_use"}


BAD_TOOLS = [
    ("/v1/responses", {"input": "q", "tools": [{"type": "function", "name": "a b"}]}),
    ("/v1/messages", {"messages": user("q"), "max_tokens": 5, "tools": [{"name": "a b", "input_schema": {}}]}),
    ("/api/chat", {"messages": user("q"), "tools": [{"type": "function", "function": {"name": "a b"}}]}),
]


@pytest.mark.parametrize(("path", "body"), BAD_TOOLS, ids=lambda value: str(value)[:16])
def test_tools_are_checked_in_every_dialect(server, path, body) -> None:
    answer = post(server, path, body)
    assert answer.status_code == 400
    assert "`tools`" in answer.text
