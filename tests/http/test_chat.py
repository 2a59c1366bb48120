"""Chat completions: text, finish and the shape of streams."""

import json

import pytest

from tests.http.client import chat, events, finish_of, pieces_of, post, refused, tape, text_of

WHAT_IS_WRITTEN = ["A😀👍🏽é한", "plain", "", "e\u0301 ﷽ 👩‍👩‍👧‍👦", '\u2028 \\ " \x00\x7f', "🏴󠁧󠁢󠁥󠁮󠁧󠁿"]


@pytest.mark.parametrize("text", WHAT_IS_WRITTEN)
def test_stream_equals_whole_answer_and_cuts_no_character(tape_server, text) -> None:
    whole = chat(tape_server, tape(text), max_tokens=64).json()
    chunks = events(chat(tape_server, tape(text), max_tokens=64, stream=True))
    assert whole["choices"][0]["message"]["content"] == text == text_of(chunks)
    assert not any("\ufffd" in piece for piece in pieces_of(chunks))
    assert whole["usage"]["completion_tokens"] == len(text.encode()) + 1
    assert whole["choices"][0]["finish_reason"] == finish_of(chunks)["finish_reason"] == "stop"


def test_character_cut_by_the_limit_is_left_out(tape_server) -> None:
    answer = chat(tape_server, tape("a😀"), max_tokens=3).json()
    chunks = events(chat(tape_server, tape("a😀"), max_tokens=3, stream=True))
    assert answer["choices"][0]["message"]["content"] == text_of(chunks)
    assert answer["choices"][0]["finish_reason"] == finish_of(chunks)["finish_reason"] == "length"
    assert not any("\ufffd" in piece for piece in pieces_of(chunks)[:-2])


def test_role_comes_once_and_finish_once_for_each_choice(tape_server) -> None:
    chunks = events(chat(tape_server, tape("hi"), n=3, stream=True, stream_options={"include_usage": True}))
    for index in range(3):
        mine = [c for chunk in chunks for c in chunk["choices"] if c["index"] == index]
        assert text_of(chunks, index) == "hi"
        assert [c["delta"].get("role") for c in mine] == ["assistant"] + [None] * (len(mine) - 1)
        assert mine[-1] is finish_of(chunks, index)
    assert chunks[-1]["choices"] == []
    assert chunks[-1]["usage"]["completion_tokens"] == 9
    assert {chunk["id"] for chunk in chunks} == {chunks[0]["id"]}


def test_choices_of_a_whole_answer_are_in_order(tape_server) -> None:
    answer = chat(tape_server, tape("hi"), n=5).json()
    assert [choice["index"] for choice in answer["choices"]] == list(range(5))
    assert [choice["message"]["content"] for choice in answer["choices"]] == ["hi"] * 5
    assert answer["usage"]["completion_tokens"] == 15


STOPS = [
    # (text, stop, keep the stop, what is seen, what matched)
    ("ABCDEFGHIJKL", ["DEFGHIJ"], False, "ABC", "DEFGHIJ"),
    ("ABCDEFGHIJKL", ["DEFGHIJ"], True, "ABCDEFGHIJ", "DEFGHIJ"),
    ("ABCDEFGHIJKL", ["DEFGHIJ", "B"], False, "A", "B"),
    ("ABCDEFGHIJKL", ["DEFGHIJ", "EF"], False, "ABCD", "EF"),
    ("ABCDEFGHIJKL", "L", False, "ABCDEFGHIJK", "L"),
    ("ABCDEFGHIJKL", ["DEFX"], False, "ABCDEFGHIJKL", 257),
    ("aaaab", ["aab"], False, "aa", "aab"),
    ("x😀y", ["😀"], False, "x", "😀"),
    ("x😀y", ["😀"], True, "x😀", "😀"),
    ("\n\nend", ["\n\n"], False, "", "\n\n"),
]


@pytest.mark.parametrize(("text", "stop", "keep", "seen", "matched"), STOPS)
def test_stop_strings(tape_server, text, stop, keep, seen, matched) -> None:
    fields = {"stop": stop, "include_stop_str_in_output": keep}
    whole = chat(tape_server, tape(text), **fields).json()["choices"][0]
    assert whole["message"]["content"] == seen
    assert (whole["finish_reason"], whole["matched_stop"]) == ("stop", matched)
    chunks = events(chat(tape_server, tape(text), stream=True, **fields))
    assert text_of(chunks) == seen
    assert (finish_of(chunks)["finish_reason"], finish_of(chunks)["matched_stop"]) == ("stop", matched)


def test_nothing_of_a_stop_string_is_streamed_before_it_is_certain(tape_server) -> None:
    chunks = events(chat(tape_server, tape("ABCDEFGHIJKL"), stop=["DEFGHIJ"], stream=True))
    assert not set("DEFGHIJ") & set("".join(pieces_of(chunks)))


def test_answer_names_itself(tape_server) -> None:
    answer = chat(tape_server, tape("hi"), rid="my-request", model="tape").json()
    assert (answer["id"], answer["object"], answer["model"]) == ("my-request", "chat.completion", "tape")
    assert answer["choices"][0]["message"]["role"] == "assistant"
    chunk = events(chat(tape_server, tape("hi"), rid="my-request", stream=True))[0]
    assert (chunk["id"], chunk["object"]) == ("my-request", "chat.completion.chunk")


# What a conversation may hold.

CALL = {"id": "1", "type": "function", "function": {"name": "look", "arguments": "{}"}}
REFUSED_MESSAGES = [
    [],
    "hi",
    {},
    [1],
    [{"role": "user"}],
    [{"role": "user", "content": None}],
    [{"role": "user", "content": 5}],
    [{"role": "user", "content": []}],
    [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "http://127.0.0.1:1/x.png"}}]}],
    [{"role": "user", "content": [{"type": "text"}]}],
    [{"role": "user", "content": ["text"]}],
    [{"role": "wizard", "content": "x"}],
    [{"role": ["user"], "content": "x"}],
    [{"content": "x"}],
    [{"role": "assistant", "tool_calls": "f()"}],
    [{"role": "assistant", "tool_calls": [{"function": {"arguments": "{}"}}]}],
    [{"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": 5}}]}],
    [{"role": "tool", "tool_call_id": 5, "content": "x"}],
    [{"role": "user", "content": "x", "name": 5}],
    [{"role": "assistant", "audio": {"id": "a"}}, {"role": "user", "content": "x"}],
    [{"role": "assistant", "refusal": 5}, {"role": "user", "content": "x"}],
]


@pytest.mark.parametrize("messages", REFUSED_MESSAGES, ids=lambda value: json.dumps(value)[:60])
def test_messages_that_are_refused(tape_server, messages) -> None:
    refused(post(tape_server, "/v1/chat/completions", {"messages": messages}), 400, param="messages")


def rendered(server, *messages, **fields) -> str:
    response = post(server, "/tokenize", {"messages": list(messages), **fields})
    assert response.status_code == 200, response.text
    answer = response.json()
    assert answer["count"] == len(answer["tokens"])
    text: str = answer["prompt"]
    again = post(server, "/detokenize", {"tokens": answer["tokens"], "skip_special_tokens": False}).json()["text"]
    assert again == text
    return text


USER = {"role": "user", "content": "q"}


def test_a_lone_assistant_message_is_answered(tape_server) -> None:
    body = {"messages": [{"role": "assistant", "content": "Hello"}], "max_tokens": 1}
    assert post(tape_server, "/v1/chat/completions", body).status_code in (200, 400)


@pytest.mark.parametrize("content", [{}, {"content": None}, {"content": ""}], ids=str)
def test_a_call_and_its_result_reach_the_prompt(tape_server, content) -> None:
    text = rendered(
        tape_server,
        USER,
        {"role": "assistant", "tool_calls": [CALL], **content},
        {"role": "tool", "tool_call_id": "1", "content": "result-r"},
    )
    assert "look" in text
    assert "result-r" in text
    assert "None" not in text
    assert "null" not in text
    body = {"messages": [USER, {"role": "assistant", "tool_calls": [CALL], **content}, USER], "max_tokens": 1}
    assert post(tape_server, "/v1/chat/completions", body).status_code == 200


@pytest.mark.parametrize("arguments", ["", "{}", None, {}, '{"a": 1}', {"a": None}, "not json", "[1]"], ids=str)
def test_arguments_of_a_call_take_any_form_that_models_write(tape_server, arguments) -> None:
    call = {"id": "1", "type": "function", "function": {"name": "look", "arguments": arguments}}
    assert "look" in rendered(tape_server, USER, {"role": "assistant", "content": None, "tool_calls": [call]})


def test_a_refusal_is_what_the_assistant_said(tape_server) -> None:
    refusing = rendered(tape_server, USER, {"role": "assistant", "content": None, "refusal": "I will not."}, USER)
    assert refusing == rendered(tape_server, USER, {"role": "assistant", "content": "I will not."}, USER)


def test_an_empty_assistant_turn_stays(tape_server) -> None:
    text = rendered(tape_server, USER, {"role": "assistant", "content": ""}, {"role": "user", "content": "B"})
    assert text.count("<|im_start|>") == 4


def test_parts_are_joined_and_developer_is_system(tape_server) -> None:
    parts = [{"type": "text", "text": "one "}, {"type": "text", "text": "two"}]
    developer = rendered(tape_server, {"role": "developer", "content": "rule"}, {"role": "user", "content": parts})
    system = rendered(tape_server, {"role": "system", "content": "rule"}, {"role": "user", "content": "one two"})
    assert developer == system


def test_generation_prompt_can_be_left_out(tape_server) -> None:
    text = rendered(tape_server, USER, add_generation_prompt=False)
    assert rendered(tape_server, USER).startswith(text)
    assert rendered(tape_server, USER) != text


BAD_KWARGS = [5, [], {"messages": []}, {"tokenize": True}, {"a b": 1}, {"__class__": 1}, {"x": {}}, {"x": "y" * 5000}]


@pytest.mark.parametrize("kwargs", BAD_KWARGS, ids=lambda value: str(value)[:30])
def test_template_variables_that_are_refused(tape_server, kwargs) -> None:
    refused(chat(tape_server, tape("a"), chat_template_kwargs=kwargs), 400, param="chat_template_kwargs")


def test_template_variables_are_passed(tape_server) -> None:
    answer = chat(tape_server, tape("a"), chat_template_kwargs={"enable_thinking": False, "depth": 3})
    assert answer.status_code == 200
