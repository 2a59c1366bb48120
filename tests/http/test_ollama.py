"""Ollama's API: with the official client, over a simulated engine and over scripted answers."""

import json
from datetime import datetime

import httpx
import ollama
import pytest
from hypothesis import given

from corymb.scheduler.messages import Finish, Sampling, TextOptions
from corymb.serve.asks import Ask, Routing
from corymb.serve.events import Content
from corymb.serve.generation import Generation
from corymb.serve.ollama_answer import OllamaAnswer
from tests.http.client import post, tape
from tests.http.conftest import simulated
from tests.http.scripts import EVERYTHING, call, ended, scripts, streamed, whole
from tests.http.simulator import Simulator

GREEDY = {"temperature": 0}
USER = {"role": "user", "content": "q"}


def client(server) -> ollama.Client:
    return ollama.Client(host=server.url)


def lines(data: bytes) -> list[dict]:
    assert data.endswith(b"\n")
    return [json.loads(line) for line in data.splitlines()]


def ok(response: httpx.Response) -> dict:
    assert response.status_code == 200, response.text
    return response.json()


def test_chat(tape_server) -> None:
    asked = {"model": "tape", "messages": [{"role": "user", "content": tape("A😀é")}], "options": GREEDY}
    answer = client(tape_server).chat(**asked)
    assert (answer.message.content, answer.done, answer.done_reason) == ("A😀é", True, "stop")
    assert answer.eval_count == len("A😀é".encode()) + 1
    assert answer.prompt_eval_count > 0
    assert 0 < answer.prompt_eval_duration + answer.eval_duration <= answer.total_duration
    pieces = list(client(tape_server).chat(**asked, stream=True))
    assert "".join(piece.message.content for piece in pieces) == "A😀é"
    assert [piece.done for piece in pieces] == [False] * (len(pieces) - 1) + [True]
    assert pieces[-1].eval_count == answer.eval_count
    assert all(datetime.fromisoformat(piece.created_at) for piece in pieces)


def test_generate(tape_server) -> None:
    answer = client(tape_server).generate(model="tape:latest", prompt=tape("ab"), options=GREEDY)
    assert (answer.response, answer.model, answer.done_reason) == ("ab", "tape:latest", "stop")
    pieces = list(client(tape_server).generate(model="tape", prompt=tape("ab"), options=GREEDY, stream=True))
    assert "".join(piece.response for piece in pieces) == "ab"


def test_a_stream_is_what_comes_without_asking(tape_server) -> None:
    response = post(tape_server, "/api/generate", {"prompt": tape("ab"), "options": GREEDY})
    assert response.headers["content-type"] == "application/x-ndjson"
    assert "".join(line["response"] for line in lines(response.content)) == "ab"


def test_raw_prompts_pass_the_template_by(simulated_hash) -> None:
    answer = client(simulated_hash).generate(model="hash", prompt="ab", raw=True, options={"num_predict": 4, **GREEDY})
    assert (answer.response, answer.done_reason, answer.prompt_eval_count) == ("svdt", "length", 2)


@pytest.mark.parametrize("path", ["chat", "generate"])
def test_nothing_to_answer_only_loads_the_model(tape_server, path) -> None:
    for body in ({}, {"messages": []} if path == "chat" else {"prompt": ""}):
        answer = ok(post(tape_server, f"/api/{path}", {"model": "tape", **body}))
        assert (answer["done"], answer["done_reason"]) == (True, "load")


def test_options_are_checked_whatever_is_asked(tape_server) -> None:
    for path in ("chat", "generate"):
        assert post(tape_server, f"/api/{path}", {"options": {"top_p": 2}}).status_code == 400


def test_options_reach_the_engine(simulated_tape) -> None:
    options = {"num_predict": 3, "temperature": 0.5, "top_p": 0.9, "top_k": 7, "min_p": 0.1, "seed": 5, "stop": ["x"]}
    penalties = {"repeat_penalty": 1.1, "presence_penalty": 0.5, "frequency_penalty": 0.25}
    client(simulated_tape).chat(model="tape", messages=[USER], options=options | penalties)
    seen = simulated_tape.simulator.seen[-1]
    sampling = seen.sampling
    assert (sampling.max_new_tokens, sampling.temperature, sampling.top_p, sampling.top_k) == (3, 0.5, 0.9, 7)
    assert (sampling.min_p, sampling.seed, seen.text.stop) == (0.1, 5, ("x",))
    assert (sampling.repetition_penalty, sampling.presence_penalty, sampling.frequency_penalty) == (1.1, 0.5, 0.25)


@pytest.mark.parametrize("value", [-1, -2])
def test_a_negative_limit_is_as_much_as_fits(simulated_tape, value) -> None:
    answer = client(simulated_tape).generate(model="tape", prompt=tape("ab"), options={"num_predict": value, **GREEDY})
    assert answer.done_reason == "stop"
    assert simulated_tape.simulator.seen[-1].sampling.max_new_tokens > 1000


def test_what_has_no_effect_is_named(tape_server) -> None:
    body = {"prompt": tape("a"), "keep_alive": "5m", "options": {"num_ctx": 2048, "future": 1, **GREEDY}}
    response = post(tape_server, "/api/generate", body)
    assert response.headers["x-ignored-fields"] == "keep_alive, options.num_ctx, options.future"


def prompt_of(server, path: str, **body) -> str:
    ok(post(server, path, {"stream": False, "options": {"num_predict": 1}, **body}))
    tokens = server.simulator.seen[-1].prompt
    ids = [int.from_bytes(tokens[i : i + 4], "little") for i in range(0, len(tokens), 4)]
    return post(server, "/detokenize", {"tokens": ids, "skip_special_tokens": False}).json()["text"]


def chat_prompt(server, *messages) -> str:
    return post(server, "/tokenize", {"messages": list(messages)}).json()["prompt"]


def test_prompts_take_the_chat_template(simulated_tape) -> None:
    system = {"role": "system", "content": "Be brief."}
    assert prompt_of(simulated_tape, "/api/generate", prompt="q") == chat_prompt(simulated_tape, USER)
    told = prompt_of(simulated_tape, "/api/generate", prompt="q", system="Be brief.")
    assert told == chat_prompt(simulated_tape, system, USER)
    assert prompt_of(simulated_tape, "/api/chat", messages=[system, USER]) == told


def test_calls_results_and_thinking_reach_the_prompt_as_those_of_a_chat(simulated_tape) -> None:
    function = {"name": "add", "arguments": {"a": 1}}
    spoken = {"role": "assistant", "content": "Wait."}
    told = prompt_of(
        simulated_tape,
        "/api/chat",
        messages=[
            USER,
            {**spoken, "thinking": "hm", "tool_calls": [{"function": function}]},
            {"role": "tool", "content": "42", "tool_name": "add"},
        ],
    )
    expected = chat_prompt(
        simulated_tape,
        USER,
        {**spoken, "reasoning_content": "hm", "tool_calls": [{"function": function}]},
        {"role": "tool", "content": "42", "name": "add"},
    )
    assert told == expected


def test_logprobs(tape_server) -> None:
    asked = {"prompt": tape("ab"), "options": GREEDY, "logprobs": True, "top_logprobs": 2}
    whole_answer = ok(post(tape_server, "/api/generate", {**asked, "stream": False}))
    assert [entry["token"] for entry in whole_answer["logprobs"][:2]] == ["a", "b"]
    told = [
        entry for line in lines(post(tape_server, "/api/generate", asked).content) for entry in line.get("logprobs", [])
    ]
    assert told[:2] == whole_answer["logprobs"][:2]


REFUSED = [
    ("chat", {"messages": "q"}, "messages"),
    ("chat", {"messages": [5]}, "messages"),
    ("chat", {"messages": [{"role": "wizard", "content": "q"}]}, "messages"),
    ("chat", {"messages": [{"role": "user", "content": "q", "images": ["x"]}]}, "text only"),
    ("chat", {"tools": 5}, "tools"),
    ("chat", {"messages": [{"role": "user", "content": "q", "images": {}}]}, "text only"),
    ("chat", {"messages": [], "think": 5}, "think"),
    ("generate", {"prompt": "", "format": "xml"}, "format"),
    ("generate", {"images": ["x"]}, "images"),
    ("generate", {"suffix": "x"}, "suffix"),
    ("generate", {"template": "x"}, "template"),
    ("generate", {"context": [1]}, "context"),
    ("generate", {"options": 5}, "options"),
    ("generate", {"options": {"num_predict": -3}}, "options.num_predict"),
    ("generate", {"options": {"temperature": "hot"}}, "options.temperature"),
    ("generate", {"options": {"mirostat": 2}}, "options.mirostat"),
    ("generate", {"options": {"num_predict": 1 << 20}}, "options.num_predict"),
    ("generate", {"format": "xml"}, "format"),
    ("chat", {"format": []}, "format"),
    ("generate", {"format": False}, "format"),
    ("generate", {"think": 5}, "think"),
    ("generate", {"stream": 1}, "stream"),
]


@pytest.mark.parametrize(("path", "fields", "named"), REFUSED, ids=lambda value: json.dumps(value)[:50])
def test_requests_that_are_refused(tape_server, path, fields, named) -> None:
    prompt = {"messages": [USER]} if path == "chat" else {"prompt": "q"}
    response = post(tape_server, f"/api/{path}", {**prompt, **fields})
    assert response.status_code == 400
    assert set(response.json()) == {"error"}
    assert named in response.json()["error"]


def test_errors_are_those_of_the_client(tape_server) -> None:
    for action in (
        lambda: client(tape_server).chat(model="nope", messages=[USER]),
        lambda: client(tape_server).show("nope"),
    ):
        with pytest.raises(ollama.ResponseError, match="not served") as caught:
            action()
        assert caught.value.status_code == 404


def test_what_clients_ask_of_a_server(tape_server) -> None:
    names = [model.model for model in client(tape_server).list().models]
    assert names == [model["id"] for model in tape_server.client.get("/v1/models").json()["data"]]
    assert [model.model for model in client(tape_server).ps().models] == names
    shown = client(tape_server).show("tape:latest")
    assert shown.capabilities[0] == "completion"
    assert [value for name, value in shown.modelinfo.items() if name.endswith("context_length")] == [1 << 17]
    assert set(tape_server.client.get("/api/version").json()) == {"version"}
    assert tape_server.client.get("/api/nope").json() == {"error": "There is no such route."}


@pytest.mark.parametrize("headers", [{}, {"content-type": "application/x-www-form-urlencoded"}], ids=str)
def test_bodies_need_not_be_declared_but_by_web_pages(tape_server, headers) -> None:
    asked = {"model": "tape", "prompt": tape("ab"), "stream": False, "options": GREEDY}
    for path, body in (("/api/generate", asked), ("/api/show", {"model": "tape"})):
        content = json.dumps(body).encode()
        answer = tape_server.client.post(path, content=content, headers=headers)
        assert answer.status_code == 200, answer.text
        page = headers | {"origin": "http://elsewhere.example"}
        assert tape_server.client.post(path, content=content, headers=page).status_code == 415


def test_a_model_is_shown_by_its_older_field_too(tape_server) -> None:
    assert ok(post(tape_server, "/api/show", {"name": "tape"})) == ok(post(tape_server, "/api/show", {"model": "tape"}))
    for names in ({"name": "nope"}, {"model": "tape", "name": "nope"}, {"model": "nope", "name": "tape"}):
        assert post(tape_server, "/api/show", names).status_code == 404


def test_an_engine_that_dies_ends_the_stream_with_an_error() -> None:
    with simulated(simulator=Simulator("tape", step_s=0.002)) as server:
        stream = client(server).generate(model="tape", prompt=tape("a" * 500), stream=True)
        next(stream)
        server.on_loop(lambda: server.engine.fail("The scheduler ended."))
        with pytest.raises(ollama.ResponseError, match="ended"):
            list(stream)


# Scripted answers.


def made(kind="chat") -> OllamaAnswer:
    sampling, text = Sampling(max_new_tokens=9), TextOptions()
    ask = Ask(rid="r", token_ids=[1] * 7, sampling=sampling, text=text, logprobs=None, n=1, routing=Routing())
    return OllamaAnswer(kind, "m", Generation([ask]))


def test_thinking_calls_and_text() -> None:
    message = json.loads(whole(made(), EVERYTHING))["message"]
    assert message["thinking"] == "Let me think."
    assert message["content"] == "\n\nI look it up.\nDone. 😀"
    calls = [ollama.Message.ToolCall.model_validate(called) for called in message["tool_calls"]]
    assert [(called.function.name, called.function.arguments) for called in calls] == [
        ("look", {"city": "São Paulo"}),
        ("wait", {}),
    ]


@given(scripts())
def test_lines_add_up_to_the_whole_answer(script) -> None:
    said = [line["message"] for line in lines(streamed(made(), script))]
    message = json.loads(whole(made(), script))["message"]
    assert "".join(part["content"] for part in said) == message["content"]
    assert "".join(part.get("thinking", "") for part in said) == message.get("thinking", "")
    assert [called for part in said for called in part.get("tool_calls", [])] == message.get("tool_calls", [])


def test_a_call_that_broke_off_does_not_come() -> None:
    for finish in (Finish("length"), Finish("stop", "x")):
        script = ended(*call(0, "f", '{"a": 1}'), *call(1, "f", '{"a'), finish=finish, at_once=True)
        said = [line["message"] for line in lines(streamed(made(), script))]
        called = [each for part in said for each in part.get("tool_calls", [])]
        assert [each["function"]["arguments"] for each in called] == [{"a": 1}]
        assert json.loads(whole(made(), script))["message"]["tool_calls"] == called


def test_how_answers_end() -> None:
    for reason in ("stop", "length"):
        script = ended(Content("a"), *call(0, "f", "{"), finish=Finish(reason))
        assert lines(streamed(made(), script))[-1]["done_reason"] == reason
        assert json.loads(whole(made("generate"), script))["response"] == "a"
