"""Tool calls and reasoning over HTTP, with the official client, on a model that says what it is told to."""

import json
import socket

import openai
import pytest

from tests.http.client import chat, events, finish_of, post, tape, text_of
from tests.http.conftest import KINDS, simulated

WEATHER = {
    "name": "get_weather",
    "description": "The weather of a city.",
    "parameters": {
        "type": "object",
        "properties": {"city": {"type": "string"}, "opt": {"type": "object"}},
        "required": ["city"],
    },
}
TOOLS = [{"type": "function", "function": WEATHER}]
ARGUMENTS = '{"city": "São Paulo", "opt": {}}'
CALL = f'<tool_call>{{"name": "get_weather", "arguments": {ARGUMENTS}}}</tool_call>'
THOUGHT = "<think>weigh < it</think>Answer </thin done"


@pytest.fixture(scope="module", params=KINDS)
def server(request, serving):
    whole = serving("corymb/tape", "--reasoning-parser", "qwen3")  # --tool-call-parser auto is qwen here
    local = simulated("tape", tool_call_parser="qwen", reasoning_parser="qwen3")
    with whole if request.param == "whole" else local as running:
        yield running


def client(server) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0)


def ok(response) -> dict:
    assert response.status_code == 200, response.text
    return response.json()["choices"][0]


def test_a_call_whole_and_streamed(server) -> None:
    choice = ok(chat(server, tape(CALL), tools=TOOLS))
    (call,) = choice["message"]["tool_calls"]
    assert call["type"] == "function"
    assert call["function"] == {"name": "get_weather", "arguments": ARGUMENTS}
    assert choice["message"]["content"] is None
    assert choice["finish_reason"] == "tool_calls"

    chunks = events(chat(server, tape(CALL), tools=TOOLS, stream=True))
    deltas = [call for chunk in chunks for call in chunk["choices"][0]["delta"].get("tool_calls", [])]
    assert {delta["index"] for delta in deltas} == {0}
    assert [delta["function"]["name"] for delta in deltas if "name" in delta["function"]] == ["get_weather"]
    assert [delta["id"] for delta in deltas if "id" in delta] == [deltas[0]["id"]]
    assert "".join(delta["function"]["arguments"] for delta in deltas) == ARGUMENTS
    assert len(deltas) > len(ARGUMENTS) / 2, "arguments stream as they are generated"
    assert text_of(chunks) == ""
    assert finish_of(chunks)["finish_reason"] == "tool_calls"


def test_the_official_client_gathers_a_stream(server) -> None:
    messages = [{"role": "user", "content": tape(f"<think>Hm.</think>\n\nI look.\n{CALL}\n{CALL}")}]
    with client(server).chat.completions.stream(model="tape", messages=messages, tools=TOOLS, temperature=0) as stream:
        for _ in stream:
            pass
        completion = stream.get_final_completion()
    message = completion.choices[0].message
    assert message.content == "I look."
    assert [json.loads(call.function.arguments) for call in message.tool_calls] == [json.loads(ARGUMENTS)] * 2
    assert len({call.id for call in message.tool_calls}) == 2


def test_tool_choice_none_leaves_calls_as_text(server) -> None:
    for stream in (False, True):
        response = chat(server, tape(CALL), tools=TOOLS, tool_choice="none", stream=stream)
        choice = finish_of(events(response)) if stream else ok(response)
        assert choice["finish_reason"] == "stop"
        assert "tool_calls" not in response.text


def test_functions_of_the_older_api(server) -> None:
    body = {"functions": [WEATHER], "function_call": "none"}
    assert ok(chat(server, tape("x"), **body))["message"]["content"] == "x"


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"tools": []}, "tools"),
        ({"tools": [{"type": "function"}]}, "tools"),
        ({"tools": [{"type": "function", "function": {"name": "a b"}}]}, "tools"),
        ({"tools": [{"type": "function", "function": {"name": "f", "parameters": []}}]}, "tools"),
        ({"tools": [{"type": "function", "function": {"name": "f", "strict": "yes"}}]}, "tools"),
        ({"tools": [*TOOLS, *TOOLS]}, "tools"),
        ({"tools": [{"type": "web_search"}]}, "tools"),
        ({"tools": "get_weather"}, "tools"),
        ({"tool_choice": "auto"}, "tool_choice"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tools": TOOLS, "tool_choice": "any"}, "tool_choice"),
        ({"tools": TOOLS, "tool_choice": {"type": "function"}}, "tool_choice"),
        ({"tools": TOOLS, "tool_choice": {"type": "function", "function": {"name": "nope"}}}, "tool_choice"),
        ({"tools": TOOLS, "functions": [WEATHER]}, "functions"),
        ({"function_call": "auto"}, "function_call"),
        ({"functions": [WEATHER], "function_call": {"name": "nope"}}, "function_call"),
        ({"tools": TOOLS, "parallel_tool_calls": "no"}, "parallel_tool_calls"),
        ({"reasoning_effort": "enormous"}, "reasoning_effort"),
        ({"separate_reasoning": 1}, "separate_reasoning"),
    ],
)
def test_what_is_wrong_with_tools_is_refused_by_name(server, fields: dict, param: str) -> None:
    response = chat(server, tape("x"), **fields)
    assert response.status_code == 400, response.text
    assert response.json()["error"]["param"] == param


def test_reasoning_is_apart_from_content(server) -> None:
    message = ok(chat(server, tape(THOUGHT)))["message"]
    assert (message["reasoning_content"], message["content"]) == ("weigh < it", "Answer </thin done")
    chunks = events(chat(server, tape(THOUGHT), stream=True))
    assert text_of(chunks) == "Answer </thin done"
    assert "".join(c["choices"][0]["delta"].get("reasoning_content", "") for c in chunks) == "weigh < it"


def test_stop_strings_count_in_content_only(server) -> None:
    for stream in (False, True):
        response = chat(server, tape("<think>weigh < it</think>Wait it out"), stop=["it", "igh"], stream=stream)
        choice = finish_of(events(response)) if stream else ok(response)
        assert choice["matched_stop"] == "it"
        text = text_of(events(response)) if stream else choice["message"]["content"]
        assert text == "Wa"
    # Where reasoning is content, they count in it.
    assert ok(chat(server, tape(THOUGHT), stop=["it"], separate_reasoning=False))["message"]["content"] == (
        "<think>weigh < "
    )
    assert ok(chat(server, tape("write it"), stop=["it"]))["message"]["content"] == "wr"


def test_reasoning_that_hits_the_limit_is_all_there_is(server) -> None:
    choice = ok(chat(server, tape(THOUGHT), max_tokens=8))
    assert choice["finish_reason"] == "length"
    assert choice["message"]["reasoning_content"] == "weigh <"
    assert not choice["message"]["content"]


@pytest.mark.parametrize("off", [{"chat_template_kwargs": {"enable_thinking": False}}, {"reasoning_effort": "none"}])
def test_reasoning_that_is_switched_off(server, off: dict) -> None:
    message = ok(chat(server, tape("Answer"), **off))["message"]
    assert "reasoning_content" not in message
    assert message["content"] == "Answer"


def test_special_tokens_that_are_no_marks_stay_hidden(server) -> None:
    text = f"<|im_start|>A<bos>{CALL}"
    message = ok(chat(server, tape(text), tools=TOOLS, ignore_eos=True, max_tokens=len(text.encode())))["message"]
    assert message["content"] == "A"


def test_functions_reach_the_prompt(server) -> None:
    body = {"messages": [{"role": "user", "content": "q"}], "tools": TOOLS}
    prompt = post(server, "/tokenize", body).json()["prompt"]
    assert "The weather of a city." in prompt
    assert prompt.startswith("<|im_start|>system\n")


def test_a_conversation_with_calls_and_results_reaches_the_prompt(server) -> None:
    calls = [{"id": "1", "type": "function", "function": {"name": "get_weather", "arguments": ARGUMENTS}}]
    older = {"role": "assistant", "content": None, "function_call": {"name": "get_weather", "arguments": ARGUMENTS}}
    for asked, result in [
        ({"role": "assistant", "content": None, "tool_calls": calls}, {"role": "tool", "tool_call_id": "1"}),
        (older, {"role": "function", "name": "get_weather"}),
    ]:
        messages = [{"role": "user", "content": "q"}, asked, result | {"content": "sunny"}]
        prompt = post(server, "/tokenize", {"messages": messages}).json()["prompt"]
        assert f'"arguments": {ARGUMENTS}' in prompt
        assert "<|im_start|>tool\nsunny<|im_end|>" in prompt
        assert "None" not in prompt
        assert "null" not in prompt


def test_images_are_refused_in_one_sentence_and_not_fetched(server) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.setblocking(False)
        url = f"http://127.0.0.1:{listener.getsockname()[1]}/x.png"
        content = [{"type": "text", "text": "What is it?"}, {"type": "image_url", "image_url": {"url": url}}]
        response = post(server, "/v1/chat/completions", {"messages": [{"role": "user", "content": content}]})
        assert response.status_code == 400
        assert response.json()["error"]["param"] == "messages"
        assert "this server takes text only" in response.json()["error"]["message"]
        with pytest.raises(BlockingIOError):
            listener.accept()


def test_texts_from_elsewhere_are_read(server) -> None:
    body = {"text": f"I look.\n{CALL}", "tools": TOOLS, "tool_call_parser": "qwen25"}
    assert post(server, "/parse_function_call", body).json() == {
        "normal_text": "I look.",
        "calls": [{"tool_index": 0, "name": "get_weather", "parameters": ARGUMENTS}],
    }
    body = {"text": "weigh < it</think>Answer " + "x" * 20_000, "reasoning_parser": "deepseek-r1"}
    answer = post(server, "/separate_reasoning", body).json()
    assert answer == {"reasoning_text": "weigh < it", "text": "Answer " + "x" * 20_000}
    for missing in ({"text": "x"}, {"text": "x", "reasoning_parser": "nope"}):
        assert post(server, "/separate_reasoning", missing).status_code == 400
