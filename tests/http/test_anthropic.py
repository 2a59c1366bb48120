"""Anthropic's messages: with the official SDK, over a simulated engine and over scripted answers."""

import json

import anthropic
import httpx
import httpx2
import pytest
from hypothesis import given

from corymb.scheduler.messages import Finish
from corymb.serve.anthropic_answer import AnthropicAnswer
from corymb.serve.events import Content
from tests.http.client import post, tape
from tests.http.conftest import simulated
from tests.http.scripts import EVERYTHING, call, ended, scripts, streamed, usage, whole
from tests.http.simulator import Simulator

USER = {"role": "user", "content": "q"}


def ask(server, content="q", **fields) -> httpx.Response:
    body = {"max_tokens": 100, "temperature": 0, "messages": [{"role": "user", "content": content}], **fields}
    return post(server, "/v1/messages", body)


def ok(response: httpx.Response) -> dict:
    assert response.status_code == 200, response.text
    return response.json()


def sdk(server) -> anthropic.Anthropic:
    return anthropic.Anthropic(base_url=server.url, api_key="none", max_retries=0)


def parsed(data: bytes) -> list[dict]:
    """The events of a stream; checks their framing."""
    blocks = data.decode().split("\n\n")
    assert blocks.pop() == ""
    events = []
    for block in blocks:
        name, payload = block.split("\n")
        events.append(json.loads(payload.removeprefix("data: ")))
        assert name == f"event: {events[-1]['type']}"
    return events


def test_text(tape_server) -> None:
    prompt = tape("A😀é")
    asked = {"model": "tape", "max_tokens": 100, "messages": [{"role": "user", "content": prompt}]}
    greedy = {"temperature": 0}
    answer = sdk(tape_server).messages.create(**asked, extra_body=greedy)
    assert [block.text for block in answer.content] == ["A😀é"]
    assert (answer.stop_reason, answer.stop_sequence, answer.role) == ("end_turn", None, "assistant")
    assert answer.usage.output_tokens == len("A😀é".encode()) + 1
    with sdk(tape_server).messages.stream(**asked, extra_body=greedy) as stream:
        assert "".join(stream.text_stream) == "A😀é"
        final = stream.get_final_message()
    assert final.content[0].text == "A😀é"
    assert final.usage.output_tokens == answer.usage.output_tokens


ENDS = [
    ({"max_tokens": 2}, "ab", "max_tokens", None),
    ({"stop_sequences": ["cd"]}, "ab", "stop_sequence", "cd"),
    ({"stop_sequences": ["zz"]}, "abcd", "end_turn", None),
]


@pytest.mark.parametrize(("fields", "text", "reason", "sequence"), ENDS)
def test_how_a_message_ends(tape_server, fields, text, reason, sequence) -> None:
    answer = ok(ask(tape_server, tape("abcd"), **fields))
    assert [block["text"] for block in answer["content"]] == [text]
    assert (answer["stop_reason"], answer["stop_sequence"]) == (reason, sequence)
    events = parsed(ask(tape_server, tape("abcd"), stream=True, **fields).content)
    assert events[-2]["delta"] == {"stop_reason": reason, "stop_sequence": sequence}


def test_cached_tokens_are_apart_from_other_input(tape_server) -> None:
    text = tape("the first of its kind")
    count = ok(post(tape_server, "/v1/messages/count_tokens", {"messages": [{"role": "user", "content": text}]}))
    for _ in range(2):
        used = ok(ask(tape_server, text))["usage"]
        assert used["input_tokens"] + used["cache_read_input_tokens"] == count["input_tokens"]
    assert used["cache_read_input_tokens"] > 0
    start = parsed(ask(tape_server, text, stream=True).content)[0]["message"]["usage"]
    assert start["input_tokens"] + start["cache_read_input_tokens"] == count["input_tokens"]


def test_an_empty_answer_is_one_empty_block(tape_server) -> None:
    assert [block["text"] for block in ok(ask(tape_server, tape("")))["content"]] == [""]
    kinds = [event["type"] for event in parsed(ask(tape_server, tape(""), stream=True).content)]
    assert kinds == ["message_start", "content_block_start", "content_block_stop", "message_delta", "message_stop"]


def prompt_of(server, **body) -> str:
    """The prompt that the engine got."""
    ok(post(server, "/v1/messages", {"max_tokens": 1, **body}))
    tokens = server.simulator.seen[-1].prompt
    ids = [int.from_bytes(tokens[i : i + 4], "little") for i in range(0, len(tokens), 4)]
    return post(server, "/detokenize", {"tokens": ids, "skip_special_tokens": False}).json()["text"]


def chat_prompt(server, *messages) -> str:
    return post(server, "/tokenize", {"messages": list(messages)}).json()["prompt"]


@pytest.mark.parametrize("system", ["Be brief.", [{"type": "text", "text": "Be "}, {"type": "text", "text": "brief."}]])
def test_system_prompts(simulated_tape, system) -> None:
    expected = chat_prompt(simulated_tape, {"role": "system", "content": "Be brief."}, USER)
    assert prompt_of(simulated_tape, system=system, messages=[USER]) == expected


@pytest.mark.parametrize(("fields", "text"), [({}, "42"), ({"is_error": True}, "Error: 42")])
@pytest.mark.parametrize(
    "content", ["42", [{"type": "text", "text": "42"}], [{"type": "text", "text": t} for t in "42"]]
)
def test_calls_and_results_reach_the_prompt_as_those_of_a_chat(simulated_tape, fields, text, content) -> None:
    use = {"type": "tool_use", "id": "t1", "name": "add", "input": {"a": 1}}
    result = {"type": "tool_result", "tool_use_id": "t1", "content": content, **fields}
    blocks = [{"type": "thinking", "thinking": "hm", "signature": ""}, {"type": "text", "text": "Wait."}, use]
    messages = [
        USER,
        {"role": "assistant", "content": blocks},
        {"role": "user", "content": [result, {"type": "text", "text": "So?"}]},
    ]
    function = {"name": "add", "arguments": {"a": 1}}
    expected = chat_prompt(
        simulated_tape,
        USER,
        {
            "role": "assistant",
            "content": "Wait.",
            "reasoning_content": "hm",
            "tool_calls": [{"id": "t1", "type": "function", "function": function}],
        },
        {"role": "tool", "tool_call_id": "t1", "content": text},
        {"role": "user", "content": "So?"},
    )
    assert prompt_of(simulated_tape, messages=messages) == expected


@pytest.mark.parametrize("content", [{}, {"content": None}, {"content": ""}, {"content": []}], ids=str)
def test_a_tool_may_give_nothing_back(simulated_tape, content) -> None:
    use = {"type": "tool_use", "id": "t1", "name": "add", "input": {}}
    result = {"type": "tool_result", "tool_use_id": "t1", **content}
    turns = [USER, {"role": "assistant", "content": [use]}, {"role": "user", "content": [result]}]
    assert prompt_of(simulated_tape, messages=turns).count("<|im_start|>") == 4


def test_models_are_listed_as_the_sdk_knows_them(tape_server) -> None:
    models = sdk(tape_server).models.list()
    assert [(model.type, model.display_name == model.id) for model in models] == [("model", True)] * len(models.data)
    assert sdk(tape_server).models.retrieve("tape").created_at.year >= 2023


DOCUMENTS = [
    ({"source": {"type": "text", "media_type": "text/plain", "data": "abc"}}, "abc\n\nSo?"),
    ({"source": {"type": "text", "data": "abc"}, "title": "T", "context": "C"}, "T\n\nC\n\nabc\n\nSo?"),
    ({"source": {"type": "content", "content": "abc"}, "citations": {"enabled": False}}, "abc\n\nSo?"),
    ({"source": {"type": "content", "content": [{"type": "text", "text": "abc"}]}}, "abc\n\nSo?"),
]


@pytest.mark.parametrize(("document", "text"), DOCUMENTS, ids=lambda value: json.dumps(value)[:60])
def test_documents_that_are_text_are_taken_as_text(simulated_tape, document, text) -> None:
    blocks = [{"type": "document", **document}, {"type": "text", "text": "So?"}]
    expected = chat_prompt(simulated_tape, {"role": "user", "content": text})
    assert prompt_of(simulated_tape, messages=[{"role": "user", "content": blocks}]) == expected


IMAGE = {"type": "image", "source": {"type": "url", "url": "http://127.0.0.1:1/x.png"}}
REFUSED = [
    ({"messages": []}, "messages"),
    ({"messages": "q"}, "messages"),
    ({"messages": [5]}, "messages"),
    ({"messages": [{"role": "wizard", "content": "q"}]}, "messages"),
    ({"messages": [{"role": ["user"], "content": "q"}]}, "messages"),
    ({"messages": [{"role": "user"}]}, "messages"),
    ({"messages": [{"role": "user", "content": []}]}, "messages"),
    ({"messages": [{"role": "user", "content": [5]}]}, "messages"),
    ({"messages": [{"role": "user", "content": [{"type": "text"}]}]}, "messages"),
    ({"messages": [{"role": "user", "content": [IMAGE]}]}, "text only"),
    ({"messages": [{"role": "user", "content": [{"type": "document", "source": IMAGE["source"]}]}]}, "text only"),
    ({"messages": [{"role": "user", "content": [{"type": "document"}]}]}, "text only"),
    ({"messages": [{"role": "user", "content": [{"type": "document", "source": {"type": "text"}}]}]}, "data"),
    ({"messages": [{"role": "user", "content": [{"type": "tool_result"}]}]}, "tool_use_id"),
    ({"messages": [USER, {"role": "assistant", "content": "prefill"}]}, "assistant"),
    ({"messages": [USER, {"role": "assistant", "content": [{"type": "tool_use", "id": "x"}]}, USER]}, "input"),
    ({"system": 5}, "system"),
    ({"max_tokens": 0}, "max_tokens"),
    ({"max_tokens": None}, "max_tokens"),
    ({"temperature": 1.5}, "temperature"),
    ({"stop_sequences": [""]}, "stop_sequences"),
    ({"tools": 5}, "tools"),
    ({"tools": [{"type": "web_search_20250305", "name": "web_search"}]}, "tools"),
    ({"tools": [{"name": "f"}]}, "input_schema"),
    ({"tool_choice": "auto"}, "tool_choice"),
    ({"tool_choice": {"type": ["auto"]}}, "tool_choice"),
    ({"tool_choice": {"type": "auto", "disable_parallel_tool_use": 1}}, "disable_parallel_tool_use"),
    ({"thinking": True}, "thinking"),
    ({"output_config": 5}, "output_config"),
    ({"output_config": {"format": {}}}, "output_config.format"),
    (
        {"messages": [{"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t", "is_error": 1}]}]},
        "is_error",
    ),
    ({"output_format": {"type": "regex"}}, "json_schema"),
    ({"mcp_servers": [{}]}, "mcp_servers"),
    ({"container": "x"}, "container"),
]


@pytest.mark.parametrize(("fields", "named"), REFUSED, ids=lambda value: json.dumps(value)[:50])
def test_requests_that_are_refused(tape_server, fields, named) -> None:
    response = ask(tape_server, **fields)
    assert response.status_code == 400
    assert set(response.json()) == {"type", "error"}
    error = response.json()["error"]
    assert (response.json()["type"], error["type"]) == ("error", "invalid_request_error")
    assert named in error["message"]


def test_what_has_no_effect_is_named(tape_server) -> None:
    inside = {"thinking": {"type": "adaptive", "display": "omitted"}, "output_config": {"later": 1}}
    response = ask(tape_server, tape("a"), metadata={"user_id": "me"}, **inside)
    assert ok(response)["content"][0]["text"] == "a"
    assert response.headers["x-ignored-fields"] == "metadata, thinking.display, output_config.later"


def test_errors_have_the_shape_that_the_sdk_knows(tape_server) -> None:
    client = sdk(tape_server)
    with pytest.raises(anthropic.NotFoundError, match="not served"):
        client.messages.create(model="nope", max_tokens=1, messages=[USER])
    assert tape_server.client.get("/v1/messages").json()["error"]["type"] == "invalid_request_error"
    assert tape_server.client.post("/v1/messages/nope").json()["error"]["type"] == "not_found_error"


def test_keys_are_those_of_the_sdk() -> None:
    with simulated("tape", api_key="sekrit") as server:
        with pytest.raises(anthropic.AuthenticationError):
            sdk(server).messages.create(model="tape", max_tokens=1, messages=[USER])
        client = anthropic.Anthropic(base_url=server.url, api_key="sekrit")
        assert client.messages.count_tokens(model="tape", messages=[USER]).input_tokens > 0


def read_until_the_engine_dies(server) -> None:
    messages = [{"role": "user", "content": tape("a" * 500)}]
    with sdk(server).messages.stream(model="tape", max_tokens=1000, messages=messages) as stream:
        for position, _ in enumerate(stream):
            if position == 4:
                server.on_loop(lambda: server.engine.fail("The scheduler ended."))


def test_an_engine_that_dies_ends_the_stream_with_an_error() -> None:
    server = simulated(simulator=Simulator("tape", step_s=0.002))
    with server as running, pytest.raises(anthropic.APIStatusError, match="ended"):
        read_until_the_engine_dies(running)


# Scripted answers.


def replayed(data: bytes) -> anthropic.types.Message:
    """What the official SDK makes of a stream."""
    headers = {"content-type": "text/event-stream"}
    transport = httpx2.MockTransport(lambda _: httpx2.Response(200, content=data, headers=headers))
    client = anthropic.Anthropic(api_key="none", http_client=httpx2.Client(transport=transport))
    with client.messages.stream(model="m", max_tokens=1, messages=[USER]) as stream:
        return stream.get_final_message()


def made() -> AnthropicAnswer:
    return AnthropicAnswer("msg_1", "m", usage())


def test_thinking_calls_and_text() -> None:
    message = replayed(streamed(made(), EVERYTHING))
    assert [block.type for block in message.content] == ["thinking", "text", "tool_use", "tool_use", "text"]
    thinking, first, look, wait, last = message.content
    assert (thinking.thinking, first.text, last.text) == ("Let me think.", "\n\nI look it up.", "\nDone. 😀")
    assert (look.id, look.name, look.input) == ("call_0", "look", {"city": "São Paulo"})
    assert wait.input == {}
    assert message.stop_reason == "tool_use"
    assert (message.usage.input_tokens, message.usage.cache_read_input_tokens) == (4, 3)
    assert message.usage.output_tokens == 9


@given(scripts())
def test_a_stream_accumulates_to_the_whole_message(script) -> None:
    events = parsed(streamed(made(), script))
    assert [events[0]["type"], *(event["type"] for event in events[-2:])] == [
        "message_start",
        "message_delta",
        "message_stop",
    ]
    content: list[dict] = []
    texts = {"text": "text_delta", "thinking": "thinking_delta", "tool_use": "input_json_delta"}
    open_block = None
    for event in events[1:-2]:
        match event["type"]:
            case "content_block_start":
                assert (open_block, event["index"]) == (None, len(content))
                open_block = event["content_block"] | {"json": ""}
                content.append(open_block)
            case "content_block_delta":
                assert event["index"] == len(content) - 1
                delta = event["delta"]
                assert open_block is not None
                assert delta["type"] == texts[open_block["type"]]
                member = "json" if open_block["type"] == "tool_use" else open_block["type"]
                open_block[member] += delta.get("partial_json", "") + delta.get("text", "") + delta.get("thinking", "")
            case "content_block_stop":
                open_block = None
    message = json.loads(whole(made(), script))
    assert len(message["content"]) == len(content)
    for streamed_block, block in zip(content, message["content"], strict=True):
        text = streamed_block.pop("json")
        if block["type"] != "tool_use":
            assert block == streamed_block
        elif block["input"]:
            assert json.loads(text) == block["input"]
    assert message["stop_reason"] == events[-2]["delta"]["stop_reason"]


def test_arguments_that_were_cut_off_are_none() -> None:
    script = ended(*call(0, "f", '{"a": '), finish=Finish("length"))
    message = json.loads(whole(made(), script))
    assert (message["content"][0]["input"], message["stop_reason"]) == ({}, "max_tokens")


def test_operators_may_end_an_answer() -> None:
    message = json.loads(whole(made(), ended(Content("a"), finish=Finish("abort", message="Aborted."))))
    assert message["stop_reason"] == "pause_turn"
