"""Bad input: every refusal has one shape and one right status, and nothing that a client sends ends the server."""

import json

import pytest

from corymb.serve.body import MAX_DEPTH
from tests.http.client import chat, complete, native, post, refused, tape
from tests.http.conftest import simulated

HEADERS = {"content-type": "application/json"}
BODIES = [
    b"", b"{", b"[]", b'"x"', b"null", b"true", b"5", b"{]", b'{"a":}', b"\xff\xfe", b'{"a":"\xff"}', b"[" * 100_000,
    b'{"a":' * 50_000, b'{"messages":"\\ud800"}', b"\xef\xbb\xbf{}", b'{"a":1}{"b":2}', b"NaN", b'[NaN]',
    b'{"seed":' + b"9" * 5000 + b"}", b"\x00", b"{'a':1}",
]  # fmt: skip


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions", "/generate", "/tokenize", "/detokenize"])
@pytest.mark.parametrize("body", BODIES, ids=lambda body: repr(body[:12]))
def test_bodies_that_are_no_request(tape_server, path, body) -> None:
    refused(tape_server.client.post(path, content=body, headers=HEADERS), 400)


DEEP = [
    ("/v1/decisions", {"input": "$", "questions": [{"type": "yes_no", "question": "?"}]}),
    ("/v1/responses", {"input": "q", "tools": [{"type": "function", "name": "f", "parameters": "$"}]}),
    ("/v1/messages", {"max_tokens": 1, "messages": [], "tools": [{"name": "f", "input_schema": "$"}]}),
    ("/v1/chat/completions", {"messages": [], "tools": [{"type": "function", "function": {"parameters": "$"}}]}),
    ("/generate", {"text": "a", "other": "$"}),
]


@pytest.mark.parametrize("depth", [MAX_DEPTH - 10, MAX_DEPTH + 1, *range(955, 975, 2), 5000])
def test_what_can_be_read_can_be_written_however_deep(tape_server, depth) -> None:
    deep = '{"a":' * depth + "1" + "}" * depth
    for path, body in DEEP:
        content = json.dumps(body).replace('"$"', deep).encode()
        response = tape_server.client.post(path, content=content, headers=HEADERS)
        assert response.status_code == 400 if depth > MAX_DEPTH else response.status_code < 500, response.text


@pytest.mark.parametrize("media_type", ["text/plain", "application/x-www-form-urlencoded", "", "application/jsonx"])
def test_body_must_be_declared_as_json(tape_server, media_type) -> None:
    body = json.dumps({"messages": [{"role": "user", "content": tape("a")}]})
    response = tape_server.client.post("/v1/chat/completions", content=body, headers={"content-type": media_type})
    refused(response, 415)


def test_charset_of_json_may_be_told(tape_server) -> None:
    body = json.dumps({"messages": [{"role": "user", "content": tape("a")}], "max_tokens": 2})
    headers = {"content-type": "Application/JSON; charset=utf-8"}
    assert tape_server.client.post("/v1/chat/completions", content=body, headers=headers).status_code == 200


FORMATS = ["json", 5, [], {}, {"type": 5}, {"type": "xml"}, {"type": "json_schema", "schema": {"type": "object"}}]


@pytest.mark.parametrize("value", FORMATS, ids=str)
def test_response_format_that_cannot_be_promised(tape_server, value) -> None:
    refused(chat(tape_server, tape("a"), response_format=value), 400, param="response_format")


def test_plain_text_may_be_asked_for(tape_server) -> None:
    assert chat(tape_server, tape("a"), response_format={"type": "text"}).status_code == 200


@pytest.mark.parametrize("name", ["nope", "", "tape:adapter", "nope\r\nx: y", "x" * 250])
def test_unknown_model(tape_server, name) -> None:
    for response in (
        chat(tape_server, tape("a"), model=name),
        complete(tape_server, "a", model=name),
        native(tape_server, "a", model=name),
        post(tape_server, "/tokenize", {"prompt": "a", "model": name}),
    ):
        error = refused(response, 404, code="model_not_found", param="model")
        assert name[:50].split("\r")[0] in error["message"]


@pytest.mark.parametrize("model", [5, [], {}, True, "x" * 257])
def test_model_must_be_a_name(tape_server, model) -> None:
    refused(chat(tape_server, tape("a"), model=model), 400, param="model")


def test_unknown_fields_are_named(tape_server) -> None:
    response = chat(tape_server, tape("a"), some_future_field={"x": 1}, user="me", **{"x\r\ny: z": 1})
    assert response.json()["choices"][0]["message"]["content"] == "a"
    assert response.headers["x-ignored-fields"] == "some_future_field, user, x%0D%0Ay%3A%20z"
    assert "x-ignored-fields" not in chat(tape_server, tape("a")).headers
    streamed = chat(tape_server, tape("a"), some_future_field=1, stream=True)
    assert streamed.headers["x-ignored-fields"] == "some_future_field"


def test_stream_options_without_a_stream_are_named(tape_server) -> None:
    for answer in (chat, complete):
        response = answer(tape_server, tape("a"), stream_options={"include_usage": True})
        assert response.headers["x-ignored-fields"] == "stream_options"


def test_members_of_stream_options_without_effect_are_named(tape_server) -> None:
    options = {"include_usage": True, "include_obfuscation": True}
    for response in (
        chat(tape_server, tape("a"), stream=True, stream_options=options),
        complete(tape_server, tape("a"), stream=True, stream_options=options),
    ):
        assert response.headers["x-ignored-fields"] == "stream_options.include_obfuscation"


def test_fields_without_effect_under_this_configuration_are_named() -> None:
    with simulated("tape", uses_priority=False, uses_routing_key=False) as server:
        response = chat(server, tape("a"), priority=1, routing_key="x", cache_salt="y")
        assert response.headers["x-ignored-fields"] == "priority, routing_key"
        refused(chat(server, tape("a"), priority="high"), 400, param="priority")
    with simulated("tape") as server:
        assert "x-ignored-fields" not in chat(server, tape("a"), priority=1, routing_key="x").headers


def test_many_unknown_fields_make_a_short_header(tape_server) -> None:
    response = chat(tape_server, tape("a"), **{f"field{i}" * 20: i for i in range(2000)})
    assert response.status_code == 200
    assert len(response.headers["x-ignored-fields"]) < 2000


def test_null_means_not_set(tape_server) -> None:
    fields = dict.fromkeys(("max_tokens", "stop", "seed", "tools", "response_format", "suffix", "n", "stream_options"))
    assert chat(tape_server, tape("a"), **fields).json()["choices"][0]["message"]["content"] == "a"


UNSUPPORTED = [
    ("/v1/completions", "best_of", 3),
    ("/v1/completions", "suffix", "zz"),
    ("/v1/completions", "messages", []),
    ("/v1/completions", "max_completion_tokens", 5),
    ("/v1/chat/completions", "tools", [{"type": "web_search"}]),
    ("/v1/chat/completions", "prompt", "a"),
    ("/v1/chat/completions", "chat_template", "{{ 7 * 7 }}"),
    ("/v1/chat/completions", "continue_final_message", True),
    ("/v1/chat/completions", "modalities", ["audio"]),
    ("*", "custom_logit_processor", "gASV"),
    ("*", "logits_processors", ["x"]),
    ("*", "use_beam_search", True),
    ("*", "lora_path", "x"),
    ("*", "bad_words", ["x"]),
]


@pytest.mark.parametrize(("path", "name", "value"), UNSUPPORTED)
def test_fields_that_cannot_be_honoured_are_refused_by_name(tape_server, path, name, value) -> None:
    bodies = {
        "/v1/completions": {"prompt": "a", "max_tokens": 1},
        "/v1/chat/completions": {"messages": [{"role": "user", "content": "a"}], "max_tokens": 1},
    }
    for target in bodies if path == "*" else [path]:
        error = refused(post(tape_server, target, {**bodies[target], name: value}), 400, param=name)
        assert error["code"] == "unsupported_parameter"
        assert name in error["message"]


NEUTRAL = [("suffix", ""), ("best_of", 1), ("top_logprobs", 0), ("use_beam_search", False), ("length_penalty", 1.0)]


@pytest.mark.parametrize(("name", "value"), NEUTRAL)
def test_neutral_values_of_such_fields_pass(tape_server, name, value) -> None:
    assert complete(tape_server, tape("a"), **{name: value}).status_code == 200


def test_best_of_may_equal_n(tape_server) -> None:
    assert len(complete(tape_server, tape("a"), n=2, best_of=2).json()["choices"]) == 2


# Values that have ended other servers.

POISON = [
    ("temperature", "NaN"), ("temperature", "1e999"), ("temperature", "-1e999"), ("temperature", "-0.1"),
    ("temperature", '"NaN"'), ("temperature", "Infinity"), ("temperature", "-Infinity"), ("temperature", "true"),
    ("temperature", "[1]"), ("temperature", "{}"), ("temperature", "101"), ("top_p", "0"), ("top_p", "NaN"),
    ("top_p", "1.0001"), ("top_p", "-1"), ("min_p", "2"), ("min_p", "-0.1"), ("min_p", "NaN"), ("top_k", "-5"),
    ("top_k", "1.5"), ("top_k", "1e10"), ("top_k", "NaN"), ("frequency_penalty", "3"), ("frequency_penalty", "-2.1"),
    ("presence_penalty", "NaN"), ("presence_penalty", "-3"), ("repetition_penalty", "0"),
    ("repetition_penalty", "-1"), ("repetition_penalty", "1e-30"), ("repetition_penalty", "1e30"),
    ("repetition_penalty", "NaN"), ("n", "0"), ("n", "-1"), ("n", "1000000000"), ("n", "1.5"), ("n", "true"),
    ("min_tokens", "-1"), ("min_tokens", "1e300"), ("min_tokens", "17"), ("max_tokens", "-1"), ("max_tokens", "1.5"),
    ("max_tokens", '"5"'), ("max_tokens", "1e300"), ("max_tokens", "9223372036854775808"),
    ("stop_token_ids", "[264]"), ("stop_token_ids", "[-1]"), ("stop_token_ids", "[1.5]"), ("stop_token_ids", "5"),
    ("stop_token_ids", "[true]"), ("stop_token_ids", "[9223372036854775808]"),
    ("stop_token_ids", "[" + "1," * 999 + "1]"),
    ("logit_bias", '{"264": 1}'), ("logit_bias", '{"-1": 1}'), ("logit_bias", '{"97": NaN}'),
    ("logit_bias", '{"97": 101}'), ("logit_bias", '{"97": "1"}'), ("logit_bias", '{"a": 1}'), ("logit_bias", "[]"),
    ("logit_bias", '{"١": 1}'), ("logit_bias", '{"9e9": 1}'), ("logit_bias", '{"' + "9" * 5000 + '": 1}'),
    ("stop", '[""]'), ("stop", '""'), ("stop", '"' + "x" * 100_000 + '"'), ("stop", "5"), ("stop", "[5]"),
    ("stop", "[" + '"x",' * 99 + '"x"]'),
    ("stop", json.dumps(["x" * 1024] * 4 + ["y"])), ("seed", "1e40"), ("seed", "1.5"), ("seed", '"7"'),
    ("seed", "9223372036854775808"), ("seed", "-9223372036854775809"), ("seed", "NaN"), ("ignore_eos", "1"),
    ("ignore_eos", '"true"'), ("skip_special_tokens", "0"), ("stream", "1"), ("stream", '"yes"'),
    ("stream_options", "5"), ("rid", '""'), ("rid", '"a/b"'), ("rid", '"a\\nb"'), ("rid", "5"),
    ("rid", '"' + "x" * 129 + '"'), ("cache_salt", '""'), ("cache_salt", "5"), ("cache_salt", '"' + "x" * 257 + '"'),
    ("extra_key", "[]"), ("priority", "1e300"), ("priority", '"high"'), ("priority", "NaN"),
]  # fmt: skip
COMPLETION_POISON = [
    ("prompt", "[-1]"), ("prompt", "[264]"), ("prompt", "[9223372036854775808]"), ("prompt", "[1.5]"),
    ("prompt", "[true]"), ("prompt", "[null]"), ("prompt", "[[264]]"), ("prompt", "[[-1]]"), ("prompt", "[[[1]]]"),
    ("prompt", '[""]'), ("prompt", '""'), ("prompt", "[]"), ("prompt", "[[]]"), ("prompt", '["a", 1]'),
    ("prompt", '[1, "a"]'), ("prompt", '["a", null]'), ("prompt", '["a", ""]'), ("prompt", "5"), ("prompt", "{}"),
    ("prompt", "[NaN]"), ("logprobs", "1000000"), ("logprobs", "-1"), ("logprobs", "true"), ("top_logprobs", "1000000"),
    ("echo", "1"),
]  # fmt: skip
CHAT_POISON = [
    ("top_logprobs", "1000000"), ("top_logprobs", "-1"), ("top_logprobs", "2"), ("logprobs", "5"),
    ("max_completion_tokens", "-1"), ("max_completion_tokens", "1.5"),
]  # fmt: skip


def poisoned(server, path: str, base: dict, name: str, value: str):
    """Sends a body in which `name` is `value`, as raw JSON."""
    body = json.dumps({key: item for key, item in base.items() if key != name})
    raw = f'{body[:-1]}, "{name}": {value}}}' if len(body) > 2 else f'{{"{name}": {value}}}'
    return server.client.post(path, content=raw.encode(), headers=HEADERS)


@pytest.mark.parametrize(("name", "value"), [*POISON, *COMPLETION_POISON], ids=lambda text: text[:24])
def test_poison_in_a_completion(tape_server, name, value) -> None:
    response = poisoned(tape_server, "/v1/completions", {"prompt": "a", "max_tokens": 16}, name, value)
    error = refused(response, 400)
    assert error["param"].split(".")[0] == name
    assert name in error["message"]


@pytest.mark.parametrize(("name", "value"), [*POISON, *CHAT_POISON], ids=lambda text: text[:24])
def test_poison_in_a_chat(tape_server, name, value) -> None:
    base = {"messages": [{"role": "user", "content": tape("a")}], "max_tokens": 16}
    error = refused(poisoned(tape_server, "/v1/chat/completions", base, name, value), 400)
    assert error["param"].split(".")[0] == name


NATIVE_NAMES = {"max_tokens": "max_new_tokens", "min_tokens": "min_new_tokens"}


@pytest.mark.parametrize(("name", "value"), POISON, ids=lambda text: text[:24])
def test_poison_in_a_native_request(tape_server, name, value) -> None:
    name = NATIVE_NAMES.get(name, name)
    if name in ("rid", "stream", "cache_salt", "extra_key", "priority"):
        error = refused(poisoned(tape_server, "/generate", {"text": "a"}, name, value), 400)
        assert error["param"] == name
    elif name != "stream_options":
        base = '{"max_new_tokens": 16, ' if name != "max_new_tokens" else "{"
        raw = f'{base}"{name}": {value}}}'
        error = refused(poisoned(tape_server, "/generate", {"text": "a"}, "sampling_params", raw), 400)
        assert error["param"] == f"sampling_params.{name}"


@pytest.mark.parametrize(
    ("raw", "param"),
    [
        ('{"temperature": 1e999}', "sampling_params.temperature"),
        ('[{"top_p": 1}, {"min_p": NaN}]', "sampling_params.min_p"),
        ('{"logit_bias": {"97": -Infinity}}', "sampling_params.logit_bias"),
        ("NaN", "sampling_params"),
        ("[NaN]", "sampling_params"),
    ],
)
def test_numbers_that_json_cannot_hold_name_their_field_at_any_depth(tape_server, raw, param) -> None:
    refused(poisoned(tape_server, "/generate", {"text": "a"}, "sampling_params", raw), 400, param=param)


def test_server_is_unharmed_after_all_of_it(tape_server) -> None:
    assert tape_server.client.get("/health").status_code == 200
    assert chat(tape_server, tape("good")).json()["choices"][0]["message"]["content"] == "good"


# Routes.

MISSING = [
    "/v1/nope", "/v1", "/v1/", "/v1/models/", "/health/", "//v1/models", "/v1//models", "/V1/models", "/docs",
    "/v1/chat/completions/", "/v1/completions/x", "/%2e%2e/health",
]  # fmt: skip


@pytest.mark.parametrize("path", MISSING)
def test_paths_that_do_not_exist(tape_server, path) -> None:
    for method in ("GET", "POST"):
        response = tape_server.client.request(method, tape_server.url + path)
        assert response.status_code in (404, 405)
        refused(response, response.status_code)


@pytest.mark.parametrize("name", ["nope", "tape/x", "%00", "x" * 3000, "%F0%9F%98%80", "a%20b"])
def test_model_that_does_not_exist(tape_server, name) -> None:
    refused(tape_server.client.get(f"/v1/models/{name}"), 404, code="model_not_found")


@pytest.mark.parametrize("method", ["GET", "PUT", "DELETE", "PATCH", "HEAD", "OPTIONS"])
def test_wrong_method(tape_server, method) -> None:
    response = tape_server.client.request(method, "/v1/chat/completions")
    assert response.status_code == 405
    assert response.headers["allow"] == "POST"
    if method != "HEAD":
        refused(response, 405, code="method_not_allowed")


def test_head_is_get_without_a_body(tape_server) -> None:
    response = tape_server.client.head("/v1/models")
    assert (response.status_code, response.content) == (200, b"")
    assert int(response.headers["content-length"]) > 0
