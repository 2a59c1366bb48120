"""Requests of every dialect with something wrong inside: each gets an answer below 500, and the server goes on."""

import copy
import json
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.http.client import complete, tape
from tests.http.conftest import simulated

FUNCTION = {"name": "f", "description": "d", "parameters": {"type": "object", "properties": {"a": {"type": "string"}}}}
TOOLS = [{"type": "function", "function": FUNCTION}]
CALLS = [{"id": "c", "type": "function", "function": {"name": "f", "arguments": '{"a": "b"}'}}]
USER = {"role": "user", "content": tape("ab")}
BODIES = {
    "/v1/chat/completions": {
        "messages": [
            USER,
            {"role": "assistant", "content": None, "tool_calls": CALLS},
            {"role": "tool", "content": "r"},
        ],
        "tools": TOOLS,
        "tool_choice": "auto",
        "max_tokens": 3,
        "stop": ["x"],
        "logprobs": True,
        "top_logprobs": 2,
        "response_format": {"type": "text"},
        "chat_template_kwargs": {"a": 1},
        "logit_bias": {"97": 1},
    },
    "/v1/responses": {
        "input": [
            {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "q"}]},
            {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": "h"}]},
            {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"},
            {"type": "function_call_output", "call_id": "c", "output": "o"},
        ],
        "tools": [{"type": "function", **FUNCTION}],
        "tool_choice": "auto",
        "text": {"format": {"type": "text"}},
        "reasoning": {"effort": "low"},
        "include": ["message.output_text.logprobs"],
        "metadata": {"a": "b"},
        "max_output_tokens": 3,
        "instructions": "i",
    },
    "/v1/messages": {
        "messages": [
            {"role": "user", "content": [{"type": "text", "text": "q"}]},
            {"role": "assistant", "content": [{"type": "tool_use", "id": "a", "name": "f", "input": {}}]},
            {
                "role": "user",
                "content": [{"type": "tool_result", "tool_use_id": "a", "content": "r", "is_error": True}],
            },
        ],
        "max_tokens": 3,
        "system": [{"type": "text", "text": "s"}],
        "stop_sequences": ["x"],
        "tools": [{"name": "f", "input_schema": {"type": "object"}}],
        "thinking": {"type": "enabled"},
        "tool_choice": {"type": "auto", "disable_parallel_tool_use": False},
        "output_config": {"effort": "low"},
    },
    "/api/chat": {
        "messages": [
            {"role": "user", "content": "q"},
            {
                "role": "assistant",
                "content": "",
                "thinking": "t",
                "tool_calls": [{"function": {"name": "f", "arguments": {}}}],
            },
            {"role": "tool", "content": "r", "tool_name": "f"},
        ],
        "tools": TOOLS,
        "format": "",
        "options": {"num_predict": 3, "stop": ["x"], "seed": 1},
        "think": False,
    },
    "/api/generate": {"prompt": "q", "system": "s", "raw": False, "options": {"num_predict": 3}, "think": "low"},
    "/generate": {"text": ["a"], "sampling_params": {"max_new_tokens": 2}, "return_logprob": True},
    "/v1/score": {"query": "a", "items": ["b", "c"], "label_token_ids": [65, 66], "apply_softmax": True},
    "/v1/rerank": {"query": "q", "documents": ["a", {"text": "b"}], "top_n": 1},
    "/v1/decisions": {
        "input": {"a": 1},
        "questions": [
            {"id": "1", "type": "choice", "question": "?", "options": ["a", {"name": "b", "description": "d"}]},
            {"id": "2", "type": "score", "question": "?", "levels": ["x", "y"]},
            {"id": "3", "type": "yes_no", "question": "?", "yes": "y"},
        ],
    },
    "/v1/embeddings": {"input": ["a", [1]], "dimensions": 2, "encoding_format": "float"},
}
JUNK = [
    *(None, True, -1, 2**63, 0.5, "", "x", "a" * 3000, [], {}, [[]], [{}], [None], ["x"], [1]),
    *({"type": []}, {"type": "text"}, {"type": "function"}, {"role": "user", "content": None}, {"name": "f"}),
]


def places(value: object, place: tuple = ()) -> Iterator[tuple]:
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in items:
        yield (*place, key)
        yield from places(item, (*place, key))


@st.composite
def wrong(draw: st.DrawFn, body: dict) -> dict:
    changed = copy.deepcopy(body)
    for _ in range(draw(st.integers(1, 2))):
        place = draw(st.sampled_from(list(places(changed))))
        inside = changed
        for key in place[:-1]:
            inside = inside[key]
        inside[place[-1]] = copy.deepcopy(draw(st.sampled_from(JUNK)))
    return changed | {"stream": draw(st.booleans())}


@pytest.fixture(scope="module")
def server():
    parsers = {"tool_call_parser": "qwen", "reasoning_parser": "qwen3"}
    with simulated("tape", enable_response_store=True, hidden_size=4, **parsers) as server:
        yield server


@pytest.mark.parametrize("path", BODIES)
def test_no_mistake_is_a_fault_of_the_server(server, path) -> None:
    @settings(max_examples=40, suppress_health_check=list(HealthCheck))
    @given(wrong(BODIES[path]))
    def check(body: dict) -> None:
        headers = {"content-type": "application/json"}
        response = server.client.post(path, content=json.dumps(body).encode(), headers=headers)
        assert response.status_code < 500, body
        assert "failed on this request" not in response.text, body

    check()
    assert complete(server, tape("ok")).json()["choices"][0]["text"] == "ok"
