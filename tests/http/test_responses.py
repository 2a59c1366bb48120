"""OpenAI's Responses API: with the official SDK, over a simulated engine and over scripted answers."""

import json
import threading

import httpx
import openai
import pytest
from hypothesis import given
from openai._streaming import Stream
from openai.types.responses import Response, ResponseStreamEvent

from corymb.scheduler.messages import Finish
from corymb.serve.events import Content, Reasoning
from corymb.serve.response_store import ResponseStore, Stored
from corymb.serve.responses_answer import ResponsesAnswer
from tests.http.client import post, refused, tape
from tests.http.conftest import simulated
from tests.http.scripts import EVERYTHING, call, ended, scripts, streamed, usage, whole
from tests.http.simulator import Simulator

GREEDY = {"temperature": 0}


def ask(server, given=None, **fields) -> httpx.Response:
    return post(server, "/v1/responses", {"input": tape("ab") if given is None else given, **GREEDY, **fields})


def ok(response: httpx.Response) -> dict:
    assert response.status_code == 200, response.text
    return response.json()


def sdk(server) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0)


@pytest.fixture
def keeping():
    with simulated("tape", enable_response_store=True) as server:
        yield server


def parsed(data: bytes) -> list[dict]:
    """The events of a stream; checks framing and numbers."""
    blocks = data.decode().split("\n\n")
    assert blocks.pop() == ""
    events = []
    for number, block in enumerate(blocks):
        name, payload = block.split("\n")
        events.append(json.loads(payload.removeprefix("data: ")))
        assert name == f"event: {events[-1]['type']}"
        assert events[-1]["sequence_number"] == number
    return events


def test_text(tape_server) -> None:
    answer = sdk(tape_server).responses.create(model="tape", input=tape("A😀é"), temperature=0)
    assert (answer.output_text, answer.status, answer.error) == ("A😀é", "completed", None)
    assert answer.usage.output_tokens == len("A😀é".encode()) + 1
    assert answer.usage.total_tokens == answer.usage.input_tokens + answer.usage.output_tokens
    with sdk(tape_server).responses.stream(model="tape", input=tape("A😀é"), temperature=0) as stream:
        for _ in stream:
            pass
        final = stream.get_final_response()
    assert final.output_text == "A😀é"
    assert final.usage == answer.usage or final.usage.input_tokens_details.cached_tokens > 0


def test_events_of_a_text(tape_server) -> None:
    events = parsed(ask(tape_server, stream=True).content)
    kinds = [event["type"] for event in events if not event["type"].endswith("text.delta")]
    assert kinds == [
        "response.created",
        "response.in_progress",
        "response.output_item.added",
        "response.content_part.added",
        "response.output_text.done",
        "response.content_part.done",
        "response.output_item.done",
        "response.completed",
    ]
    assert "".join(event["delta"] for event in events if event["type"].endswith("text.delta")) == "ab"
    assert next(event for event in events if event["type"].endswith("text.done"))["text"] == "ab"


def test_an_empty_answer_is_one_empty_message(tape_server) -> None:
    (item,) = ok(ask(tape_server, tape("")))["output"]
    assert (item["type"], item["content"][0]["text"]) == ("message", "")
    kinds = [event["type"] for event in parsed(ask(tape_server, tape(""), stream=True).content)]
    assert kinds[2:] == [
        *("response.output_item.added", "response.content_part.added", "response.output_text.done"),
        *("response.content_part.done", "response.output_item.done", "response.completed"),
    ]


def test_a_cut_answer_is_incomplete(tape_server) -> None:
    answer = ok(ask(tape_server, max_output_tokens=1))
    assert (answer["status"], answer["incomplete_details"]) == ("incomplete", {"reason": "max_output_tokens"})
    assert (answer["output"][0]["status"], answer["output"][0]["content"][0]["text"]) == ("incomplete", "a")
    events = parsed(ask(tape_server, max_output_tokens=1, stream=True).content)
    assert events[-1]["type"] == "response.incomplete"
    assert events[-2]["item"]["status"] == "incomplete"


def test_logprobs(tape_server) -> None:
    fields = {"include": ["message.output_text.logprobs"], "top_logprobs": 2}
    entries = ok(ask(tape_server, **fields))["output"][0]["content"][0]["logprobs"]
    assert [entry["token"] for entry in entries[:2]] == ["a", "b"]
    assert [round(other["logprob"], 4) for other in entries[0]["top_logprobs"]] == [-0.3219, -1.3219]
    events = parsed(ask(tape_server, stream=True, **fields).content)
    told = [entry for event in events if event["type"].endswith("text.delta") for entry in event["logprobs"]]
    done = next(event for event in events if event["type"].endswith("text.done"))
    assert told == done["logprobs"] == entries
    assert ok(ask(tape_server))["output"][0]["content"][0]["logprobs"] == []


def test_what_was_asked_comes_back(tape_server) -> None:
    answer = ok(ask(tape_server, metadata={"k": "v"}, instructions="Be brief.", max_output_tokens=5))
    assert (answer["metadata"], answer["instructions"], answer["max_output_tokens"]) == ({"k": "v"}, "Be brief.", 5)
    assert (answer["temperature"], answer["top_p"], answer["store"]) == (0, 1, False)


def test_what_has_no_effect_is_named(tape_server) -> None:
    inside = {
        "reasoning": {"summary": "auto", "effort": None},
        "text": {"verbosity": "low", "format": {"type": "text"}},
    }
    response = ask(tape_server, include=["reasoning.encrypted_content"], user="me", **inside)
    assert (
        response.headers["x-ignored-fields"]
        == "user, text.verbosity, reasoning.summary, include.reasoning.encrypted_content"
    )
    inside = {"reasoning": {"effort": "low"}, "text": {"format": {"type": "json_object", "shape": "x"}}}
    assert (
        ask(tape_server, tape("{}"), **inside, max_output_tokens=9).headers["x-ignored-fields"].split(", ")[-1]
        == "text.format.shape"
    )


def test_an_effort_that_the_template_does_not_know_is_named_as_the_client_did() -> None:
    with simulated("tape", uses_effort=False) as server:
        assert ask(server, reasoning={"effort": "low"}).headers["x-ignored-fields"] == "reasoning.effort"
        body = {"max_tokens": 5, "messages": [{"role": "user", "content": "q"}], "output_config": {"effort": "low"}}
        assert post(server, "/v1/messages", body).headers["x-ignored-fields"] == "output_config.effort"


# Conversations.


def prompt_of(server, **body) -> str:
    ok(post(server, "/v1/responses", {"max_output_tokens": 1, **body}))
    tokens = server.simulator.seen[-1].prompt
    ids = [int.from_bytes(tokens[i : i + 4], "little") for i in range(0, len(tokens), 4)]
    return post(server, "/detokenize", {"tokens": ids, "skip_special_tokens": False}).json()["text"]


def chat_prompt(server, *messages) -> str:
    return post(server, "/tokenize", {"messages": list(messages)}).json()["prompt"]


USER = {"role": "user", "content": "q"}


@pytest.mark.parametrize(
    "given_input",
    ["q", [USER], [{"type": "message", "role": "user", "content": [{"type": "input_text", "text": "q"}]}]],
    ids=str,
)
def test_forms_of_input(simulated_tape, given_input) -> None:
    assert prompt_of(simulated_tape, input=given_input) == chat_prompt(simulated_tape, USER)
    expected = chat_prompt(simulated_tape, {"role": "system", "content": "Be brief."}, USER)
    assert prompt_of(simulated_tape, input=given_input, instructions="Be brief.") == expected


def test_calls_results_and_reasoning_reach_the_prompt_as_those_of_a_chat(simulated_tape) -> None:
    items = [
        USER,
        {"type": "reasoning", "id": "rs", "summary": [], "content": [{"type": "reasoning_text", "text": "hm"}]},
        {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "Wait."}]},
        {"type": "function_call", "call_id": "c1", "name": "add", "arguments": '{"a": 1}'},
        {"type": "function_call", "call_id": "c2", "name": "add", "arguments": '{"a": 2}'},
        {"type": "function_call_output", "call_id": "c1", "output": "42"},
        {"type": "function_call_output", "call_id": "c2", "output": [{"type": "input_text", "text": "43"}]},
        {"type": "reasoning", "summary": []},
    ]

    def made(name: str, number: int) -> dict:
        return {"id": name, "type": "function", "function": {"name": "add", "arguments": {"a": number}}}

    expected = chat_prompt(
        simulated_tape,
        USER,
        {
            "role": "assistant",
            "content": "Wait.",
            "reasoning_content": "hm",
            "tool_calls": [made("c1", 1), made("c2", 2)],
        },
        {"role": "tool", "tool_call_id": "c1", "content": "42"},
        {"role": "tool", "tool_call_id": "c2", "content": "43"},
    )
    assert prompt_of(simulated_tape, input=items) == expected


def test_a_stored_response_is_continued(keeping) -> None:
    client = sdk(keeping)
    first = client.responses.create(model="tape", input=tape("ab"), temperature=0, instructions="Be brief.")
    second = client.responses.create(
        model="tape", input=tape("cd"), temperature=0, previous_response_id=first.id, instructions="Be long."
    )
    assert (first.output_text, second.output_text, second.previous_response_id) == ("ab", "cd", first.id)
    expected = chat_prompt(
        keeping,
        {"role": "system", "content": "Be long."},
        {"role": "user", "content": tape("ab")},
        {"role": "assistant", "content": "ab"},
        {"role": "user", "content": tape("cd")},
    )
    tokens = keeping.simulator.seen[-1].prompt
    assert bytes(tokens[::4]).decode("latin-1").count("TAPE") == expected.count("TAPE") == 2
    assert len(tokens) // 4 == post(keeping, "/tokenize", {"prompt": expected}).json()["count"]


def test_stored_responses_can_be_read_and_deleted(keeping) -> None:
    client = sdk(keeping)
    streamed_one = list(client.responses.create(model="tape", input=tape("ab"), temperature=0, stream=True))
    final = streamed_one[-1].response
    assert client.responses.retrieve(final.id) == final
    assert client.responses.input_items.list(final.id).data[0].content[0].text == tape("ab")
    client.responses.delete(final.id)
    for path in (f"/v1/responses/{final.id}", f"/v1/responses/{final.id}/input_items"):
        refused(keeping.client.get(path), 404, code="response_not_found")
    refused(ask(keeping, previous_response_id=final.id), 404, code="response_not_found", param="previous_response_id")


def test_input_items_come_page_by_page(keeping) -> None:
    client = sdk(keeping)
    items = [{"role": "user", "content": "0"}, {"role": "assistant", "content": "1"}]
    items += [
        {"role": "user", "id": f"mine_{n}", "content": [{"type": "input_text", "text": str(n)}]} for n in (2, 3, 4)
    ]
    answer = client.responses.create(model="tape", input=[*items, {"role": "user", "content": tape("ab")}])
    pages = client.responses.input_items.list(answer.id, limit=2, order="asc")
    assert [item.content[0].text for item in pages] == ["0", "1", "2", "3", "4", tape("ab")]
    newest = client.responses.input_items.list(answer.id, limit=2, after="mine_4")
    assert ([item.id for item in newest.data], newest.has_more) == (["mine_3", "mine_2"], True)
    assert client.responses.input_items.list(answer.id).data[0].content[0].text == tape("ab")
    for query, param in (("limit=0", "limit"), ("limit=101", "limit"), ("order=up", "order"), ("after=x", "after")):
        refused(keeping.client.get(f"/v1/responses/{answer.id}/input_items?{query}"), 400, param=param)


STORED_QUERIES = [
    ("?stream=true", "stream"),
    ("?stream=maybe", "stream"),
    ("?stream=false&stream=true", "stream"),
    ("?starting_after=0", "starting_after"),
    ("?include=message.output_text.logprobs", "include"),
    ("?include=thoughts", "include"),
    ("/input_items?include[]=message.output_text.logprobs", "include"),
    ("/input_items?order=", "order"),
    ("/input_items?limit=", "limit"),
    ("/input_items?limit=5&limit=6", "limit"),
]


def test_what_a_query_asks_in_vain_of_a_stored_response_is_refused(keeping) -> None:
    client = sdk(keeping)
    answer = client.responses.create(model="tape", input=tape("ab"), temperature=0)
    for query, param in STORED_QUERIES:
        refused(keeping.client.get(f"/v1/responses/{answer.id}{query}"), 400, param=param)
    with pytest.raises(openai.BadRequestError, match="`stream`"):
        client.responses.retrieve(answer.id, stream=True)
    with pytest.raises(openai.BadRequestError, match="log-probabilities"):
        client.responses.retrieve(answer.id, include=["message.output_text.logprobs"])
    assert client.responses.retrieve(answer.id) == answer


def test_a_stored_response_keeps_its_logprobs(keeping) -> None:
    include, client = ["message.output_text.logprobs"], sdk(keeping)
    answer = client.responses.create(model="tape", input=tape("ab"), temperature=0, include=include)
    assert client.responses.retrieve(answer.id, include=include) == answer
    assert len(answer.output[0].content[0].logprobs) >= 2


def test_what_a_query_or_a_body_asks_without_effect_is_named(keeping) -> None:
    path = f"/v1/responses/{ok(ask(keeping))['id']}"
    named = "include.reasoning.encrypted_content, include_obfuscation, x"
    query = "?include[]=reasoning.encrypted_content&stream=false&include_obfuscation=false&x=1"
    assert keeping.client.get(path + query).headers["x-ignored-fields"] == named
    assert keeping.client.get(path + "/input_items?before=i&limit=5").headers["x-ignored-fields"] == "before"
    assert post(keeping, path + "/cancel?now=1", {"reason": "x"}).headers["x-ignored-fields"] == "reason, now"
    assert keeping.client.delete(path + "?soft=true").headers["x-ignored-fields"] == "soft"


@pytest.mark.parametrize("fields", [{}, {"instructions": "Be brief."}, {"max_output_tokens": 3}], ids=str)
def test_input_tokens_are_those_of_the_response(tape_server, fields) -> None:
    counted = post(tape_server, "/v1/responses/input_tokens", {"input": tape("ab"), **fields})
    assert ok(counted) == {
        "object": "response.input_tokens",
        "input_tokens": ok(ask(tape_server, **fields))["usage"]["input_tokens"],
    }
    assert sdk(tape_server).responses.input_tokens.count(model="tape", input=tape("ab")).input_tokens > 0
    refused(post(tape_server, "/v1/responses/input_tokens", {}), 400, param="input")


def test_what_is_not_to_be_stored_is_not(keeping) -> None:
    answer = ok(ask(keeping, store=False))
    assert answer["store"] is False
    refused(keeping.client.get(f"/v1/responses/{answer['id']}"), 404, code="response_not_found")


@pytest.mark.parametrize(("name", "value"), [("store", True), ("previous_response_id", "resp_1")])
def test_without_a_store_what_needs_one_is_refused(tape_server, name, value) -> None:
    error = refused(ask(tape_server, **{name: value}), 400, param=name, code="unsupported_parameter")
    assert "--enable-response-store" in error["message"]
    assert ask(tape_server, store=False).status_code == 200


def test_a_running_response_can_be_cancelled() -> None:
    with simulated(simulator=Simulator("tape", step_s=0.002)) as server:
        events: list = []

        def read() -> None:
            for event in sdk(server).responses.create(model="tape", input=tape("a" * 900), stream=True):
                events.append(event)
                if event.type == "response.created":
                    begun.set()

        begun = threading.Event()
        reader = threading.Thread(target=read)
        reader.start()
        assert begun.wait(5)
        sdk(server).responses.cancel(events[0].response.id)
        reader.join(5)
        assert events[-1].type == "response.failed"
        refused(post(server, f"/v1/responses/{events[0].response.id}/cancel", {}), 404, code="response_not_found")


def test_only_responses_can_be_cancelled() -> None:
    with simulated(simulator=Simulator("tape", step_s=0.002)) as server:
        body = {"prompt": "a", "rid": "resp_x", "stream": True, "max_tokens": 5000, "ignore_eos": True}
        with server.client.stream("POST", "/v1/completions", json=body):
            refused(post(server, "/v1/responses/resp_x/cancel", {}), 404, code="response_not_found")
            assert server.engine.num_open == 1


def test_an_engine_that_dies_fails_the_response() -> None:
    with simulated(simulator=Simulator("tape", step_s=0.002)) as server:
        lines: list[str] = []
        with server.client.stream("POST", "/v1/responses", json={"input": tape("a" * 500), "stream": True}) as response:
            for line in response.iter_lines():
                lines.append(line)
                if len(lines) == 20:
                    server.on_loop(lambda: server.engine.fail("The scheduler ended."))
        events = parsed("\n".join([*lines, ""]).encode())
        assert [event["type"] for event in events[-2:]] == ["error", "response.failed"]
        assert events[-1]["response"]["error"]["message"] == "The scheduler ended."


REFUSED = [
    ({"input": None}, "input"),
    ({"input": 5}, "input"),
    ({"input": []}, "input"),
    ({"input": [5]}, "input"),
    ({"input": [{"role": "wizard", "content": "q"}]}, "input"),
    ({"input": [{"role": ["user"], "content": "q"}]}, "input"),
    ({"input": [{"role": "user"}]}, "input"),
    ({"input": [{"role": "user", "content": [{"type": "input_image", "image_url": "http://127.0.0.1:1/"}]}]}, "input"),
    ({"input": [{"type": "item_reference", "id": "x"}]}, "input"),
    ({"input": [{"type": ["message"]}]}, "input"),
    ({"input": [{"type": "function_call", "name": "f"}]}, "input"),
    ({"input": [{"type": "function_call_output", "call_id": "c"}]}, "input"),
    ({"max_output_tokens": 0}, "max_output_tokens"),
    ({"metadata": {"a": 5}}, "metadata"),
    ({"metadata": {str(n): "" for n in range(17)}}, "metadata"),
    ({"text": 5}, "text"),
    ({"text": {"format": 5}}, "text.format"),
    ({"text": {"format": {"type": "xml"}}}, "text.format"),
    ({"reasoning": 5}, "reasoning"),
    ({"include": "x"}, "include"),
    ({"tools": 5}, "tools"),
    ({"tools": [{"type": "web_search"}]}, "tools"),
    ({"tool_choice": {"type": "web_search"}}, "tool_choice"),
    ({"background": True}, "background"),
    ({"conversation": "c"}, "conversation"),
    ({"prompt": {"id": "p"}}, "prompt"),
    ({"truncation": "auto"}, "truncation"),
    ({"n": 2}, "n"),
    ({"rid": "mine"}, "rid"),
    ({"temperature": "hot"}, "temperature"),
]


@pytest.mark.parametrize(("fields", "param"), REFUSED, ids=lambda value: json.dumps(value)[:50])
def test_requests_that_are_refused(tape_server, fields, param) -> None:
    refused(ask(tape_server, **fields), 400, param=param)


def test_a_format_without_a_schema_is_told_in_the_words_of_this_route(tape_server) -> None:
    nested = {"type": "json_schema", "json_schema": {"name": "x", "schema": {}}}  # as in a chat completion
    for wanted in ({"type": "json_schema"}, nested):
        error = refused(ask(tape_server, text={"format": wanted}), 400, param="text.format")
        assert '{"type": "json_schema", "name": …, "schema": {…}}' in error["message"]


def test_too_many_tokens_are_named_as_the_client_did(tape_server) -> None:
    error = refused(ask(tape_server, max_output_tokens=1 << 20), 400, param="max_output_tokens")
    assert error["code"] == "context_length_exceeded"


# Scripted answers.


def made(keep=lambda _: None) -> ResponsesAnswer:
    envelope = {"id": "resp_1", "object": "response", "created_at": 1, "model": "m", "output": [], "error": None}
    more = {"parallel_tool_calls": True, "tool_choice": "auto", "tools": [], "incomplete_details": None}
    return ResponsesAnswer(envelope | more | {"usage": None, "status": "in_progress"}, usage(), keep)


def replayed(data: bytes) -> list[ResponseStreamEvent]:
    """What the official SDK makes of a stream."""
    response = httpx.Response(200, content=data, headers={"content-type": "text/event-stream"})
    client = openai.OpenAI(api_key="none")
    return list(Stream(cast_to=ResponseStreamEvent, response=response, client=client))  # type: ignore[arg-type]


def test_reasoning_calls_and_text() -> None:
    kept: list[dict] = []
    events = parsed(streamed(made(kept.append), EVERYTHING))
    final = Response.model_validate(events[-1]["response"])
    assert [item.type for item in final.output] == ["reasoning", "message", "function_call", "function_call", "message"]
    reasoning, first, look, wait, last = final.output
    assert (reasoning.content[0].text, first.content[0].text) == ("Let me think.", "\n\nI look it up.")
    assert (look.call_id, look.name, look.arguments) == ("call_0", "look", '{"city": "São Paulo"}')
    assert (wait.arguments, last.content[0].text) == ("{}", "\nDone. 😀")
    assert final.usage.output_tokens_details.reasoning_tokens == 2
    assert final.usage.input_tokens_details.cached_tokens == 3
    assert kept == [events[-1]["response"]]


def test_every_event_is_one_that_the_sdk_knows() -> None:
    names = {event.type for event in replayed(streamed(made(), EVERYTHING))}
    assert {"response.reasoning_text.delta", "response.function_call_arguments.done", "response.completed"} <= names


def without_time(response: dict) -> dict:
    return {name: value for name, value in response.items() if name != "completed_at"}


@given(scripts())
def test_a_stream_ends_with_the_whole_response(script) -> None:
    events = parsed(streamed(made(), script))
    assert without_time(events[-1]["response"]) == without_time(json.loads(whole(made(), script)))
    open_item = None
    items: list[dict] = []
    for event in events[2:-1]:
        match event["type"]:
            case "response.output_item.added":
                assert (open_item, event["output_index"]) == (None, len(items))
                open_item, text = event["item"], ""
            case "response.output_item.done":
                assert open_item is not None
                assert event["item"]["id"] == open_item["id"]
                items.append(event["item"])
                open_item = None
            case kind if kind.endswith(".delta"):
                assert open_item is not None
                assert event["item_id"] == open_item["id"]
                text += event["delta"]
            case kind if kind.endswith(("text.done", "arguments.done")):
                assert event.get("text", event.get("arguments")) == text
    assert items == events[-1]["response"]["output"]


@pytest.mark.parametrize(
    "part", [call(0, "f", '{"a'), [Reasoning("hm")], [Content("a")]], ids=["call", "reasoning", "text"]
)
def test_only_what_was_cut_is_incomplete(part) -> None:
    events = part if isinstance(part, list) else [part]
    response = json.loads(
        whole(made(), ended(Reasoning("first"), *call(0, "f", "{}"), *events, finish=Finish("length")))
    )
    statuses = [item["status"] for item in response["output"]]
    assert statuses == ["completed"] * (len(statuses) - 1) + ["incomplete"]


def test_a_call_that_a_stop_string_cut_is_incomplete() -> None:
    script = ended(*call(0, "f", '{"a": 1}'), *call(1, "f", '{"a'), finish=Finish("stop", "x"))
    response = json.loads(whole(made(), script))
    assert [item["status"] for item in response["output"]] == ["completed", "incomplete"]
    assert response["status"] == "completed"


# The store.


def stored(size: int) -> Stored:
    return Stored(b"a" * size, b"", b"")


def test_the_store_forgets_what_was_used_least_recently() -> None:
    store = ResponseStore(max_bytes=30, max_responses=3)
    for name in ("a", "b", "c"):
        store.put(name, stored(10))
    assert store.get("a") is not None
    store.put("d", stored(10))
    assert [name for name in "abcd" if store.get(name)] == ["a", "c", "d"]
    assert (len(store), store.num_bytes) == (3, 30)


def test_the_store_keeps_to_its_bytes() -> None:
    store = ResponseStore(max_bytes=30, max_responses=100)
    for number in range(10):
        store.put(str(number), stored(9))
    assert (len(store), store.num_bytes) == (3, 27)
    store.put("large", stored(31))
    assert (len(store), store.num_bytes, store.get("large")) == (0, 0, None)
    assert store.pop("nothing") is None
