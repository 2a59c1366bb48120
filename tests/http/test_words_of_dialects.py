"""What is refused is named as the client called it, with the path to it, whatever the field is called further in."""

import json

import pytest

from tests.http.client import post, refused
from tests.http.conftest import simulated

USER = {"role": "user", "content": "q"}
NO_TYPE = {"type": "foo"}
HUGE = "x" * 200_000
LOOK = {"name": "look", "parameters": {"type": "object", "properties": {}}}


@pytest.fixture(scope="module")
def server():
    with simulated("tape", tool_call_parser="qwen", reasoning_parser="qwen3") as server:
        yield server


MESSAGES = [
    ({"thinking": 5}, "thinking"),
    ({"thinking": {"type": "often"}}, "thinking.type"),
    ({"thinking": {"type": "enabled", "budget_tokens": "1024"}}, "thinking.budget_tokens"),
    ({"output_config": {"effort": "huge"}}, "output_config.effort"),
    ({"output_config": {"format": "json"}}, "output_config.format"),
    ({"output_config": {"format": {"type": "json_schema"}}}, "output_config.format.schema"),
    ({"output_config": {"format": {"type": "json_schema", "schema": NO_TYPE}}}, "output_config.format.schema"),
    ({"output_format": {"type": "json_schema", "schema": NO_TYPE}}, "output_format.schema"),
    ({"output_format": "json"}, "output_format"),
    ({"system": [{"type": "text"}]}, "system"),
    ({"system": [{"type": "image"}]}, "system"),
    ({"stop_sequences": [5]}, "stop_sequences"),
    ({"tool_choice": {"type": "any"}}, "tool_choice"),
    ({"tool_choice": {"type": "auto", "disable_parallel_tool_use": 1}}, "tool_choice"),
]
CHAT = [
    ({"format": NO_TYPE}, "format"),
    ({"format": {"$ref": "#/nowhere"}}, "format"),
    ({"think": "huge"}, "think"),
    ({"options": {"stop": [""]}}, "options.stop"),
    ({"options": {"seed": 1.5}}, "options.seed"),
    ({"messages": [{**USER, "thinking": 5}]}, "thinking"),
    ({"messages": [{**USER, "tool_name": ["f"]}]}, "tool_name"),
    ({"tools": [{"type": "function", "function": {"name": "a b"}}]}, "tools"),
]
GENERATE = [
    ({"format": NO_TYPE}, "format"),
    ({"think": "huge"}, "think"),
    ({"raw": True, "system": "Be brief."}, "system"),
]
RESPONSES = [
    ({"text": {"format": 5}}, "text.format"),
    ({"text": {"format": {"type": "xml"}}}, "text.format"),
    ({"text": {"format": {"type": "json_schema", "name": "f"}}}, "text.format"),
    ({"text": {"format": {"type": "json_schema", "name": "f", "schema": NO_TYPE}}}, "text.format.schema"),
    ({"reasoning": {"effort": "huge"}}, "reasoning.effort"),
    ({"input": HUGE}, "input"),
    ({"input": [{"role": "wizard", "content": "q"}], "instructions": "Be brief."}, "input"),
    ({"max_output_tokens": 1 << 20}, "max_output_tokens"),
    ({"max_tool_calls": 0}, "max_tool_calls"),
    ({"include": ["everything"]}, "include"),
    ({"tool_choice": {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "mcp"}]}}, "tool_choice"),
]
OTHERS = [
    ("/v1/chat/completions", {"messages": [{"role": "user", "content": HUGE}]}, "messages"),
    ("/v1/chat/completions", {"messages": [USER], "max_completion_tokens": 1 << 20}, "max_completion_tokens"),
    ("/v1/completions", {"prompt": HUGE}, "prompt"),
    ("/tokenize", {"prompt": HUGE * 40}, "prompt"),
    ("/tokenize", {"messages": [{"role": "user", "content": HUGE * 40}]}, "messages"),
    ("/generate", {"text": HUGE}, "text"),
    ("/generate", {"input_ids": [97] * (1 << 17)}, "input_ids"),
    ("/v1/score", {"query": HUGE, "items": ["a"], "label_token_ids": [97]}, "items"),
    ("/v1/rerank", {"query": "q", "documents": ["a", HUGE]}, "documents"),
    ("/v1/decisions", {"input": HUGE, "questions": [{"type": "yes_no", "question": "q"}]}, "input"),
]
REFUSALS = [
    *(("/v1/messages", {"messages": [USER], "max_tokens": 2000, **fields}, name) for fields, name in MESSAGES),
    *(("/api/chat", {"messages": [USER], **fields}, name) for fields, name in CHAT),
    *(("/api/generate", {"prompt": "q", **fields}, name) for fields, name in GENERATE),
    *(("/v1/responses", {"input": "q", **fields}, name) for fields, name in RESPONSES),
    *OTHERS,
]


@pytest.mark.parametrize(("path", "body", "name"), REFUSALS, ids=lambda value: json.dumps(value)[:70])
def test_a_refusal_names_the_path_that_the_client_wrote(server, path, body, name) -> None:
    response = post(server, path, body)
    assert response.status_code == 400, response.text
    if path.startswith(("/v1/messages", "/api/")):
        error = response.json()["error"]
        assert f"`{name}`" in (error if isinstance(error, str) else error["message"])
    else:
        refused(response, 400, param=name)


def test_two_fields_that_exclude_each_other_are_both_named(server) -> None:
    body = {"input": "q", "regex": "a", "text": {"format": {"type": "json_object"}}}
    assert "`text.format` and `regex`" in refused(post(server, "/v1/responses", body), 400, param="regex")["message"]


def test_a_floor_names_the_ceiling_that_was_set(server) -> None:
    body = {"messages": [USER], "min_tokens": 6, "max_completion_tokens": 5}
    error = refused(post(server, "/v1/chat/completions", body), 400, param="min_tokens")
    assert "`max_completion_tokens`" in error["message"]


def test_the_items_of_an_input_keep_their_numbers_behind_instructions(server) -> None:
    items = [USER, {"role": "wizard", "content": "q"}]
    error = refused(post(server, "/v1/responses", {"input": items, "instructions": "Be brief."}), 400)
    assert "item 1 " in error["message"]


@pytest.mark.parametrize("path", ["/v1/responses", "/v1/messages"])
def test_an_empty_list_of_tools_offers_none(server, path) -> None:
    body = {"input": "q", "tool_choice": "auto"} if path == "/v1/responses" else {"messages": [USER], "max_tokens": 5}
    answer = post(server, path, {**body, "tools": []})
    assert answer.status_code == 200, answer.text
    assert "x-ignored-fields" not in answer.headers
    needs_some = "required" if path == "/v1/responses" else {"type": "any"}
    assert post(server, path, {**body, "tools": [], "tool_choice": needs_some}).status_code == 400


def test_a_response_may_be_held_to_some_of_its_tools(server) -> None:
    tools = [{"type": "function", **LOOK}, {"type": "function", "name": "wait"}]
    choice = {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "function", "name": "wait"}]}
    body = {"input": "q", "tools": tools, "tool_choice": choice, "max_output_tokens": 1}
    answer = post(server, "/v1/responses", body)
    assert (answer.status_code, answer.json()["tool_choice"]) == (200, choice)
    prompt = server.simulator.seen[-1].prompt[::4]
    assert b'"wait"' in prompt
    assert b'"look"' not in prompt
    choice["tools"] = [{"type": "function", "name": "fly"}]
    assert "fly" in refused(post(server, "/v1/responses", body), 400, param="tool_choice")["message"]


def test_a_raw_prompt_says_that_no_template_heeds_the_thinking(server) -> None:
    body = {"prompt": "q", "raw": True, "think": True, "stream": False, "options": {"num_predict": 1}}
    assert post(server, "/api/generate", body).headers["x-ignored-fields"] == "think"


def test_agents_of_anthropics_api_read_that_a_conversation_is_too_long(server) -> None:
    limit = 1 << 17
    too_long = [{"role": "user", "content": "x" * (limit + 100)}]
    words = {
        "prompt is too long: ": {"messages": too_long, "max_tokens": 5},
        "input length and `max_tokens` exceed context limit: ": {"messages": [USER], "max_tokens": limit},
    }
    for begin, body in words.items():
        message = post(server, "/v1/messages", body).json()["error"]["message"]
        assert message.startswith(begin)
        assert f" > {limit}" in message
        assert f"maximum context length is {limit} tokens" in message
    huge = {"messages": [{"role": "user", "content": "x" * 5_000_000}], "max_tokens": 5}
    assert "prompt is too long" in post(server, "/v1/messages", huge).json()["error"]["message"]
    counted = post(server, "/v1/messages/count_tokens", {"messages": too_long})
    assert counted.status_code == 200, "what is too long can be counted"


# Budgets of Anthropic's thinking.

BUDGETS = [
    (1023, 2000, "1024"),
    (0, 2000, "1024"),
    (-1, 2000, "1024"),
    (1024.5, 2000, "1024"),
    (True, 2000, "1024"),
    (2000, 2000, "`max_tokens`"),
    (4000, 2000, "`max_tokens`"),
]


@pytest.mark.parametrize(("budget", "max_tokens", "named"), BUDGETS)
def test_a_budget_of_thinking_lies_between_1024_and_the_limit(server, budget, max_tokens, named) -> None:
    thinking = {"type": "enabled", "budget_tokens": budget}
    response = post(server, "/v1/messages", {"messages": [USER], "max_tokens": max_tokens, "thinking": thinking})
    assert response.status_code == 400
    message = response.json()["error"]["message"]
    assert "`thinking.budget_tokens`" in message
    assert named in message


@pytest.mark.parametrize("budget", [1024, 1025.0, 1999])
def test_a_budget_of_thinking_reaches_the_scheduler(server, budget) -> None:
    body = {"messages": [USER], "max_tokens": 2000, "thinking": {"type": "enabled", "budget_tokens": budget}}
    response = post(server, "/v1/messages", body)
    assert response.status_code == 200, response.text
    assert "x-ignored-fields" not in response.headers
    assert server.simulator.seen[-1].sampling.thinking.max_tokens == budget


@pytest.mark.parametrize("kind", ["adaptive", "disabled"])
def test_only_enabled_thinking_has_a_budget(server, kind) -> None:
    thinking = {"type": kind, "budget_tokens": 1024}
    response = post(server, "/v1/messages", {"messages": [USER], "max_tokens": 2000, "thinking": thinking})
    assert "`thinking.budget_tokens`" in response.json()["error"]["message"]


def test_a_budget_has_its_bounds_where_it_can_have_no_effect_too(simulated_tape) -> None:
    body = {"messages": [USER], "max_tokens": 2000, "thinking": {"type": "enabled", "budget_tokens": 1024}}
    assert post(simulated_tape, "/v1/messages", body).headers["x-ignored-fields"] == "thinking.budget_tokens"
    body["thinking"]["budget_tokens"] = 5
    assert post(simulated_tape, "/v1/messages", body).status_code == 400
