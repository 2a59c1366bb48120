"""The official `ollama` package against a whole server."""

import ollama
import pytest

from tests.clients.words import call, tape

GREEDY = {"temperature": 0, "num_predict": 300}


@pytest.fixture
def client(agent):
    return ollama.Client(host=agent.url)


def user(text: str) -> list[dict]:
    return [{"role": "user", "content": tape(text)}]


def test_the_model_is_listed_and_shown(client) -> None:
    assert next(iter(client.list().models)).model.startswith("tape")
    assert client.show("tape").details is not None


def test_chats_whole_and_streamed(client) -> None:
    whole = client.chat("tape", messages=user("one two"), options=GREEDY)
    assert whole.message.content == "one two"
    assert whole.done_reason == "stop"
    assert whole.eval_count == len("one two") + 1
    parts = list(client.chat("tape", messages=user("one two"), options=GREEDY, stream=True))
    assert "".join(part.message.content or "" for part in parts) == "one two"
    assert [part.done for part in parts] == [False] * (len(parts) - 1) + [True]


def test_a_prompt_is_continued(client) -> None:
    assert client.generate("tape", tape("on"), options=GREEDY, raw=True).response == "on"


def test_calls_and_reasoning(client) -> None:
    def get_weather(city: str) -> str:
        """The weather of a city.

        Args:
            city: its name
        """
        return city

    said = "<think>hm</think>" + call("get_weather", city="Oslo")
    answer = client.chat("tape", messages=user(said), tools=[get_weather], options=GREEDY, think=True)
    assert answer.message.thinking == "hm"
    assert [(made.function.name, made.function.arguments) for made in answer.message.tool_calls] == [
        ("get_weather", {"city": "Oslo"})
    ]


def test_errors_have_their_status(client) -> None:
    with pytest.raises(ollama.ResponseError) as missing:
        client.chat("nope", messages=user("a"))
    assert missing.value.status_code == 404
