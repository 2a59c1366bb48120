"""The official `anthropic` package against a whole server."""

import anthropic
import pytest

from tests.clients.words import call, tape

TOOL = {
    "name": "get_weather",
    "input_schema": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
}
WANTED = {"model": "tape", "max_tokens": 400, "extra_body": {"temperature": 0}}


@pytest.fixture
def client(agent):
    with anthropic.Anthropic(base_url=agent.url, api_key="none", max_retries=0) as client:
        yield client


def user(text: str) -> list[dict]:
    return [{"role": "user", "content": tape(text)}]


def test_answers_count_what_was_counted_before(client) -> None:
    counted = client.messages.count_tokens(model="tape", messages=user("Grüße"), system="Be kind.").input_tokens
    for cached in (False, True):
        message = client.messages.create(**WANTED, messages=user("Grüße"), system="Be kind.")
        assert message.content[0].text == "Grüße"
        assert message.stop_reason == "end_turn"
        assert (message.usage.cache_read_input_tokens > counted / 2) is cached
        assert message.usage.input_tokens + message.usage.cache_read_input_tokens == counted


def test_a_stream_of_reasoning_text_and_calls_is_put_together(client) -> None:
    said = "<think>hm</think>Let me look." + call("get_weather", city="Oslo") + call("get_weather", city="Rome")
    with client.messages.stream(**WANTED, messages=user(said), tools=[TOOL]) as stream:
        kinds = {event.type for event in stream}
        message = stream.get_final_message()
    assert {"thinking", "text", "input_json"} <= kinds
    assert [block.type for block in message.content] == ["thinking", "text", "tool_use", "tool_use"]
    assert [block.input["city"] for block in message.content[2:]] == ["Oslo", "Rome"]
    assert message.stop_reason == "tool_use"


def test_a_loop_of_tools_comes_to_its_end(client) -> None:
    messages = user(call("get_weather", city="Oslo"))
    first = client.messages.create(**WANTED, messages=messages, tools=[TOOL])
    used = next(block for block in first.content if block.type == "tool_use")
    messages += [
        {"role": "assistant", "content": [block.model_dump() for block in first.content]},
        {
            "role": "user",
            "content": [
                {"type": "tool_result", "tool_use_id": used.id, "content": "no such city", "is_error": True},
                {"type": "text", "text": tape("I could not find it.")},
            ],
        },
    ]
    last = client.messages.create(**WANTED, messages=messages, tools=[TOOL])
    assert last.content[0].text == "I could not find it."


def test_errors_have_their_classes(client) -> None:
    with pytest.raises(anthropic.BadRequestError, match="temperature"):
        client.messages.create(**{**WANTED, "extra_body": {"temperature": 7}}, messages=user("a"))
    with pytest.raises(anthropic.NotFoundError):
        client.messages.create(**{**WANTED, "model": "nope"}, messages=user("a"))
