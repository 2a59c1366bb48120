"""Thinking by family and dialect: when it is told apart, how it is switched off, and how far it may go."""

import pytest

from tests.http.client import chat, post, refused, tape
from tests.http.conftest import simulated

MARKS = ("<think>", "</think>")
KIMI = ("◁think▷", "◁/think▷")
HARMONY = ("<|channel|>analysis<|message|>", "<|end|><|start|>assistant<|channel|>final<|message|>")
ALWAYS, DEFAULT, ASKED = "always", "unless it is switched off", "if it is asked to"
FAMILIES = {
    "deepseek-r1": (MARKS, ALWAYS),
    "qwen3-thinking": (MARKS, ALWAYS),
    "minimax": (MARKS, ALWAYS),
    "step3": (MARKS, ALWAYS),
    "qwen3": (MARKS, DEFAULT),
    "glm45": (MARKS, DEFAULT),
    "kimi_k2": (MARKS, DEFAULT),
    "deepseek-v3": (MARKS, ASKED),
    "kimi": (KIMI, ALWAYS),
    "gpt-oss": (HARMONY, ALWAYS),
}
ON = {"enable_thinking": True, "thinking": True}
OFF = {"enable_thinking": False, "thinking": False}


@pytest.fixture(scope="module", params=FAMILIES)
def family(request):
    (opening, closing), thinks = FAMILIES[request.param]
    with simulated("tape", reasoning_parser=request.param) as server:
        yield server, tape(f"{opening}why{closing}Yes"), thinks


def by_chat(server, said: str, **fields) -> str | None:
    response = chat(server, said, **fields)
    assert response.status_code == 200, response.text
    message = response.json()["choices"][0]["message"]
    assert message["content"] == "Yes" or message.get("reasoning_content") is None
    return message.get("reasoning_content")


def by_messages(server, said: str, thinking) -> str | None:
    body = {"messages": [{"role": "user", "content": said}], "max_tokens": 2000, "temperature": 0, "thinking": thinking}
    blocks = post(server, "/v1/messages", body).json()["content"]
    return next((block["thinking"] for block in blocks if block["type"] == "thinking"), None)


def by_responses(server, said: str, effort: str) -> str | None:
    body = {"input": said, "temperature": 0, "reasoning": {"effort": effort}}
    items = post(server, "/v1/responses", body).json()["output"]
    return next((item["content"][0]["text"] for item in items if item["type"] == "reasoning"), None)


def by_ollama(server, said: str, think: bool) -> str | None:
    body = {"messages": [{"role": "user", "content": said}], "stream": False, "think": think}
    return post(server, "/api/chat", body | {"options": {"temperature": 0}}).json()["message"].get("thinking")


def test_thoughts_are_told_apart_in_every_dialect(family) -> None:
    server, said, thinks = family
    assert by_chat(server, said) == (None if thinks is ASKED else "why")
    assert by_chat(server, said, chat_template_kwargs=ON) == "why"
    assert by_messages(server, said, {"type": "enabled", "budget_tokens": 1024}) == "why"
    assert by_responses(server, said, "high") == (None if thinks is ASKED else "why")
    assert by_ollama(server, said, True) == "why"


def test_thinking_is_switched_off_in_every_dialect(family) -> None:
    server, said, thinks = family
    expected = "why" if thinks is ALWAYS else None
    assert by_chat(server, said, chat_template_kwargs=OFF) == expected
    assert by_chat(server, said, reasoning_effort="none") == expected
    assert by_messages(server, said, {"type": "disabled"}) == expected
    assert by_responses(server, said, "none") == expected
    assert by_ollama(server, said, False) == expected


def test_thoughts_may_stay_in_the_content(family) -> None:
    server, said, _ = family
    message = chat(server, said, separate_reasoning=False, chat_template_kwargs=ON).json()["choices"][0]["message"]
    assert "reasoning_content" not in message
    assert "why" in message["content"]
    assert message["content"].endswith("Yes")


def test_a_budget_reaches_the_scheduler_in_both_dialects_that_have_one(family) -> None:
    server, said, _ = family
    by_chat(server, said, max_thinking_tokens=1024, chat_template_kwargs=ON)
    by_messages(server, said, {"type": "enabled", "budget_tokens": 1024})
    first, second = (each.sampling.thinking for each in server.simulator.seen[-2:])
    assert first == second
    assert (first.max_tokens, bool(first.end)) == (1024, True)
    refused(chat(server, said, max_thinking_tokens=-1), 400, param="max_thinking_tokens")
