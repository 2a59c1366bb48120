"""Chunks of a chat add up to the whole answer, whatever it says and however it was cut."""

import json

import pytest
from hypothesis import given
from openai.lib.streaming.chat import ChatCompletionStreamState
from openai.types.chat import ChatCompletion, ChatCompletionChunk

from corymb.scheduler.messages import Finish
from corymb.serve.answer import Head
from corymb.serve.chat_answer import ChatAnswer
from corymb.serve.events import Content
from corymb.serve.stream_usage import StreamUsage
from tests.http.scripts import EVERYTHING, Script, call, ended, scripts, streamed, usage, whole


def made(**fields) -> ChatAnswer:
    heads = Head("r", "chat.completion", 1, "m"), Head("r", "chat.completion.chunk", 1, "m")
    return ChatAnswer(*heads, usage=usage(), stream_usage=StreamUsage(**fields))


def chunks_of(script: Script, **fields) -> list[dict]:
    blocks = streamed(made(**fields), script).decode().split("\n\n")
    assert blocks[-2:] == ["data: [DONE]", ""]
    return [json.loads(block.removeprefix("data: ")) for block in blocks[:-2]]


def test_the_official_sdk_reads_both_alike() -> None:
    state = ChatCompletionStreamState()
    for chunk in chunks_of(EVERYTHING):
        state.handle_chunk(ChatCompletionChunk.model_validate(chunk))
    (streamed_choice,) = state.get_final_completion().choices
    (choice,) = ChatCompletion.model_validate_json(whole(made(), EVERYTHING)).choices
    assert streamed_choice.message.content == choice.message.content == "\n\nI look it up.\n\nDone. 😀"
    assert choice.message.reasoning_content == "Let me think."
    assert choice.finish_reason == streamed_choice.finish_reason == "tool_calls"
    calls = [(each.id, each.function.name, each.function.arguments) for each in choice.message.tool_calls]
    assert calls == [("call_0", "look", '{"city": "São Paulo"}'), ("call_1", "wait", "{}")]
    assert [(each.id, each.function.arguments) for each in streamed_choice.message.tool_calls] == [
        (name, arguments) for name, _, arguments in calls
    ]


@given(scripts())
def test_chunks_add_up(script) -> None:
    choices = [chunk["choices"][0] for chunk in chunks_of(script)]
    assert [choice["delta"].get("role") for choice in choices] == ["assistant"] + [None] * (len(choices) - 1)
    assert [choice["finish_reason"] is None for choice in choices] == [True] * (len(choices) - 1) + [False]
    answer = json.loads(whole(made(), script))
    (choice,) = answer["choices"]
    message = choice["message"]
    deltas = [each["delta"] for each in choices]
    assert "".join(delta.get("content") or "" for delta in deltas) == (message["content"] or "")
    assert "".join(delta.get("reasoning_content", "") for delta in deltas) == message.get("reasoning_content", "")
    calls: list[dict] = []
    for piece in [piece for delta in deltas for piece in delta.get("tool_calls", [])]:
        if "id" in piece:
            assert piece["index"] == len(calls)
            calls.append({"id": piece["id"], "name": piece["function"]["name"], "arguments": ""})
        calls[piece["index"]]["arguments"] += piece["function"]["arguments"]
    assert calls == [{"id": each["id"], **each["function"]} for each in message.get("tool_calls", [])]
    finish = script[-1][-1].finish
    calls_whole = calls and finish.reason == "stop" and (finish.matched == 257 or is_json(calls[-1]["arguments"]))
    assert choices[-1]["finish_reason"] == choice["finish_reason"] == ("tool_calls" if calls_whole else finish.reason)


def is_json(text: str) -> bool:
    try:
        json.loads(text)
    except ValueError:
        return False
    return True


@given(scripts())
def test_usage_on_every_chunk_changes_nothing_else(script) -> None:
    plain = chunks_of(script)
    told = chunks_of(script, always=True, at_end=True)
    assert told.pop()["choices"] == []
    assert all(chunk.pop("usage")["completion_tokens"] == 9 for chunk in told)
    empty = {"content": ""}
    assert [chunk for chunk in told if chunk["choices"][0]["delta"] != empty] == plain


@pytest.mark.parametrize("finish", [Finish("length"), Finish("abort"), Finish("stop", "x")], ids=str)
def test_a_broken_off_call_does_not_ask_to_be_made(finish) -> None:
    script = ended(Content("a"), *call(0, "f", '{"a'), finish=finish)
    (choice,) = json.loads(whole(made(), script))["choices"]
    assert choice["finish_reason"] == chunks_of(script)[-1]["choices"][0]["finish_reason"] == finish.reason
    assert choice["message"]["tool_calls"][0]["function"]["arguments"] == '{"a'
