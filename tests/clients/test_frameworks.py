"""Frameworks that people build on, against a whole server: litellm and instructor."""

import json

import litellm
import pytest

from tests.clients.words import call, tape

TOOL = {
    "type": "function",
    "function": {"name": "get_weather", "parameters": {"type": "object", "properties": {"city": {"type": "string"}}}},
}


def ask(agent, text: str, **more):
    litellm.telemetry = False
    asked = {"model": "openai/tape", "api_base": f"{agent.url}/v1", "api_key": "none", "temperature": 0, **more}
    return litellm.completion(messages=[{"role": "user", "content": tape(text)}], **asked)


def test_litellm_answers_and_streams(agent) -> None:
    whole = ask(agent, "one two")
    assert whole.choices[0].message.content == "one two"
    assert whole.usage.completion_tokens == len("one two") + 1
    chunks = list(ask(agent, "one two", stream=True, stream_options={"include_usage": True}))
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices) == "one two"
    rebuilt = litellm.stream_chunk_builder(chunks)
    assert rebuilt.choices[0].message.content == "one two"


def test_litellm_tells_calls_and_reasoning(agent) -> None:
    answer = ask(agent, "<think>hm</think>" + call("get_weather", city="Oslo"), tools=[TOOL])
    message = answer.choices[0].message
    assert message.reasoning_content == "hm"
    assert json.loads(message.tool_calls[0].function.arguments) == {"city": "Oslo"}
    assert answer.choices[0].finish_reason == "tool_calls"


def test_litellm_knows_a_context_that_is_too_long(agent) -> None:
    for asked in ({}, {"model": "anthropic/tape", "api_base": agent.url, "max_tokens": 5}):
        with pytest.raises(litellm.ContextWindowExceededError):
            ask(agent, "x" * 140_000, **asked)


def test_litellm_speaks_anthropics_dialect(agent) -> None:
    answer = litellm.completion(
        model="anthropic/tape",
        api_base=agent.url,
        api_key="none",
        temperature=0,
        max_tokens=50,
        messages=[{"role": "user", "content": tape("one two")}],
    )
    assert answer.choices[0].message.content == "one two"


@pytest.mark.parametrize("provider", ["ollama_chat", "ollama"])
def test_litellm_speaks_ollamas_dialect(agent, provider) -> None:
    asked = {"model": f"{provider}/tape", "api_base": agent.url, "temperature": 0}
    # The older provider writes the conversation into one prompt, which then is no tape.
    messages = [{"role": "user", "content": tape("one two")}]
    answer = litellm.completion(**asked, messages=messages).choices[0]
    assert answer.finish_reason == "stop"
    pieces = [
        part.choices[0].delta.content or "" for part in litellm.completion(**asked, messages=messages, stream=True)
    ]
    assert "".join(pieces) == answer.message.content
    assert provider == "ollama" or answer.message.content == "one two"
