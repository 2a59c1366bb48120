"""Chat completions over a simulated engine."""

import json

import pytest


def events(response) -> list[dict]:
    """The events of a stream; checks that it ends as streams must."""
    lines = [line for line in response.text.split("\n\n") if line]
    assert all(line.startswith("data: ") for line in lines)
    assert lines[-1] == "data: [DONE]"
    return [json.loads(line[6:]) for line in lines[:-1]]


def chat(server, content: str, **fields):
    body = {"model": "tape", "messages": [{"role": "user", "content": content}], "temperature": 0, **fields}
    return server.post("/v1/chat/completions", **body)


def content_of(chunks: list[dict], index: int = 0) -> str:
    deltas = [c["delta"] for chunk in chunks for c in chunk["choices"] if c["index"] == index]
    return "".join(delta.get("content") or "" for delta in deltas)


@pytest.mark.parametrize("text", ["A😀👍🏽é한", "plain", "", "e\u0301 ﷽ 👩‍👩‍👧‍👦", '\u2028 \\ " \x00'])
def test_stream_equals_whole_answer_and_cuts_no_character(tape, text) -> None:
    whole = chat(tape, "TAPE " + json.dumps(text)).json()
    chunks = events(chat(tape, "TAPE " + json.dumps(text), stream=True))
    assert whole["choices"][0]["message"]["content"] == text == content_of(chunks)
    assert not any("\ufffd" in (c["choices"][0]["delta"].get("content") or "") for c in chunks)
    assert whole["usage"]["completion_tokens"] == len(text.encode()) + 1
    assert whole["choices"][0]["finish_reason"] == "stop"


def test_role_comes_once_and_finish_once_for_each_choice(tape) -> None:
    chunks = events(chat(tape, 'TAPE "hi"', n=3, stream=True, stream_options={"include_usage": True}))
    for index in range(3):
        mine = [c for chunk in chunks for c in chunk["choices"] if c["index"] == index]
        assert content_of(chunks, index) == "hi"
        assert [c["delta"].get("role") for c in mine] == ["assistant"] + [None] * (len(mine) - 1)
        assert [c["finish_reason"] for c in mine][-1] == "stop"
        assert [c["finish_reason"] for c in mine].count(None) == len(mine) - 1
    assert chunks[-1]["choices"] == []
    assert chunks[-1]["usage"]["completion_tokens"] == 9
    assert {chunk["id"] for chunk in chunks} == {chunks[0]["id"]}
