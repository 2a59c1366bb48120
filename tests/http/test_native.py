"""The native endpoint."""

import itertools
import json

import pytest

from tests.http.client import events, native, post, refused, tape
from tests.http.conftest import simulated


def ok(response):
    assert response.status_code == 200, response.text
    return response.json()


def stream_events(response) -> list[dict]:
    return events(response)


def test_answer(hash_server) -> None:
    answer = ok(native(hash_server, "ab", {"max_new_tokens": 4}, rid="native-1"))
    assert answer["text"] == "svdt"
    assert answer["output_ids"] == list(b"svdt")
    meta = answer["meta_info"]
    assert meta["id"] == "native-1"
    assert meta["finish_reason"] == {"type": "length", "length": 4}
    assert (meta["prompt_tokens"], meta["completion_tokens"]) == (2, 4)
    assert 0 <= meta["cached_tokens"] < 2
    assert meta["e2e_latency"] > 0


def test_stop(tape_server) -> None:
    assert ok(native(tape_server, tape("ab")))["meta_info"]["finish_reason"] == {"type": "stop", "matched": 257}
    answer = ok(native(tape_server, tape("abcd"), {"stop": "c", "no_stop_trim": True}))
    assert (answer["text"], answer["meta_info"]["finish_reason"]) == ("abc", {"type": "stop", "matched": "c"})


def test_default_limit_is_128(hash_server) -> None:
    assert ok(native(hash_server, "ab"))["meta_info"]["completion_tokens"] == 128


@pytest.mark.parametrize("body", [{"text": ["ab", "ba"]}, {"input_ids": [[97, 98], [98, 97]]}], ids=str)
def test_batch(hash_server, body) -> None:
    params = {"temperature": 0, "max_new_tokens": 4}
    answers = ok(post(hash_server, "/generate", {**body, "sampling_params": params}))
    assert [answer["text"] for answer in answers] == ["svdt", "uzrs"]
    each = [params, {**params, "max_new_tokens": 2}]
    answers = ok(post(hash_server, "/generate", {**body, "sampling_params": each, "rid": ["one", "two"]}))
    assert [answer["text"] for answer in answers] == ["svdt", "uz"]
    assert [answer["meta_info"]["id"] for answer in answers] == ["one", "two"]


def test_one_prompt_of_ids(hash_server) -> None:
    body = {"input_ids": [97, 98], "sampling_params": {"temperature": 0, "max_new_tokens": 4}}
    assert ok(post(hash_server, "/generate", body))["text"] == "svdt"
    assert ok(hash_server.client.put("/generate", json=body))["text"] == "svdt"


def test_choices(hash_server) -> None:
    answers = ok(native(hash_server, "ab", {"max_new_tokens": 4, "n": 3}, rid="many"))
    assert [answer["text"] for answer in answers] == ["svdt"] * 3
    assert [answer["meta_info"]["id"] for answer in answers] == ["many/0", "many/1", "many/2"]


def test_stream_tells_everything_so_far(tape_server) -> None:
    chunks = stream_events(native(tape_server, tape("a😀\n"), stream=True))
    texts = [chunk["text"] for chunk in chunks]
    assert all(later.startswith(earlier) for earlier, later in itertools.pairwise(texts))
    assert texts[-1] == "a😀\n"
    assert chunks[-1]["output_ids"] == [*"a😀\n".encode(), 257]
    assert [chunk["meta_info"]["finish_reason"] is None for chunk in chunks] == [True] * (len(chunks) - 1) + [False]
    assert "index" not in chunks[0]


def test_stream_of_several_tells_which(hash_server) -> None:
    chunks = stream_events(native(hash_server, ["ab", "ba"], {"max_new_tokens": 4}, stream=True))
    last = {chunk["index"]: chunk["text"] for chunk in chunks}
    assert last == {0: "svdt", 1: "uzrs"}


def test_incremental_stream() -> None:
    with simulated("tape", incremental_streaming_output=True) as server:
        chunks = stream_events(native(server, tape("abc"), stream=True, return_logprob=True))
        assert "".join(chunk["text"] for chunk in chunks) == "abc"
        assert [i for chunk in chunks for i in chunk["output_ids"]] == [97, 98, 99, 257]
        assert sum(len(chunk["meta_info"]["output_token_logprobs"]) for chunk in chunks) == 4


def test_logprobs(hash_server) -> None:
    fields = {"return_logprob": True, "logprob_start_len": 0, "top_logprobs_num": 2, "return_text_in_logprobs": True}
    meta = ok(native(hash_server, "abc", {"max_new_tokens": 2}, **fields))["meta_info"]
    assert [entry[1:] for entry in meta["input_token_logprobs"]] == [[97, "a"], [98, "b"], [99, "c"]]
    assert meta["input_token_logprobs"][0][0] is None
    assert abs(meta["input_token_logprobs"][1][0] + 10.0119) < 1e-3
    assert len(meta["output_token_logprobs"]) == len(meta["output_top_logprobs"]) == 2
    assert meta["input_top_logprobs"][0] is None
    assert len(meta["output_top_logprobs"][0]) == 2
    plain = ok(native(hash_server, "abc", {"max_new_tokens": 2}, return_logprob=True))["meta_info"]
    assert plain["input_token_logprobs"] == []
    assert [entry[2] for entry in plain["output_token_logprobs"]] == [None, None]


def test_names_of_the_native_fields(simulated_tape) -> None:
    ok(native(simulated_tape, tape("ab"), {"min_new_tokens": 3, "sampling_seed": 5}, priority=3, extra_key="tenant"))
    seen = simulated_tape.simulator.seen[-1]
    assert (seen.sampling.min_new_tokens, seen.sampling.seed) == (3, 5)
    assert (seen.priority, seen.extra_key) == (3, "tenant")


REFUSED = [
    ({}, "text"),
    ({"text": "a", "input_ids": [1]}, "text"),
    ({"text": 5}, "text"),
    ({"text": ["a", 5]}, "text"),
    ({"text": []}, "text"),
    ({"text": ""}, "text"),
    ({"text": ["a", ""]}, "text"),
    ({"text": [[97]]}, "text"),
    ({"input_ids": "a"}, "input_ids"),
    ({"input_ids": []}, "input_ids"),
    ({"input_ids": [[]]}, "input_ids"),
    ({"input_ids": [264]}, "input_ids"),
    ({"input_ids": [[97], [-1]]}, "input_ids"),
    ({"input_ids": [[97], "a"]}, "input_ids"),
    ({"input_ids": [97, [98]]}, "input_ids"),
    ({"text": "a", "sampling_params": []}, "sampling_params"),
    ({"text": "a", "sampling_params": 5}, "sampling_params"),
    ({"text": ["a", "b"], "sampling_params": [{}]}, "sampling_params"),
    ({"text": "a", "sampling_params": {"n": 0}}, "sampling_params.n"),
    ({"text": "a", "sampling_params": {"max_tokens": 5}}, "sampling_params.max_tokens"),
    ({"text": "a", "sampling_params": {"regex": "a("}}, "sampling_params.regex"),
    ({"text": ["a", "b"], "rid": ["x"]}, "rid"),
    ({"text": ["a", "b"], "rid": ["x", "x"]}, "rid"),
    ({"text": "a", "return_logprob": 1}, "return_logprob"),
    ({"text": ["a", "b"], "return_logprob": [True]}, "return_logprob"),
    ({"text": "a", "return_logprob": True, "logprob_start_len": 5}, "logprob_start_len"),
    ({"text": "a", "return_logprob": True, "top_logprobs_num": 129}, "top_logprobs_num"),
    ({"text": "a", "return_logprob": True, "token_ids_logprob": [264]}, "token_ids_logprob"),
    ({"text": "a", "image_data": "x"}, "image_data"),
    ({"text": "a", "input_embeds": [[0.1]]}, "input_embeds"),
    ({"text": "a", "session_params": {}}, "session_params"),
    ({"text": "a", "bootstrap_room": 1}, "bootstrap_room"),
]


@pytest.mark.parametrize(("body", "param"), REFUSED, ids=lambda value: json.dumps(value)[:50])
def test_requests_that_are_refused(tape_server, body, param) -> None:
    refused(post(tape_server, "/generate", body), 400, param=param)


def test_ignored_fields_of_sampling_params_are_named(tape_server) -> None:
    response = native(tape_server, tape("a"), {"future": 1}, other=2)
    assert response.headers["x-ignored-fields"] == "other, sampling_params.future"


# Text and ids.


def test_tokenize_and_detokenize(tape_server) -> None:
    answer = ok(post(tape_server, "/tokenize", {"prompt": "aé<eos>"}))
    assert answer == {"tokens": [97, 0xC3, 0xA9, 257], "count": 4, "max_model_len": 1 << 17}
    assert ok(post(tape_server, "/v1/tokenize", {"prompt": ["a", "bc"]}))["count"] == [1, 2]
    assert ok(post(tape_server, "/detokenize", {"tokens": [97, 257]})) == {"text": "a"}
    body = {"tokens": [[97, 257], []], "skip_special_tokens": False}
    assert ok(post(tape_server, "/v1/detokenize", body)) == {"text": ["a<eos>", ""]}


BAD_TEXTS = [
    ("/tokenize", {}, "prompt"),
    ("/tokenize", {"prompt": 5}, "prompt"),
    ("/tokenize", {"prompt": []}, "prompt"),
    ("/tokenize", {"prompt": "a", "messages": [{"role": "user", "content": "a"}]}, "prompt"),
    ("/detokenize", {}, "tokens"),
    ("/detokenize", {"tokens": "a"}, "tokens"),
    ("/detokenize", {"tokens": [264]}, "tokens"),
    ("/detokenize", {"tokens": [-1]}, "tokens"),
    ("/detokenize", {"tokens": [[97], 98]}, "tokens"),
    ("/detokenize", {"tokens": [97, [98]]}, "tokens"),
]


@pytest.mark.parametrize(("path", "body", "param"), BAD_TEXTS, ids=str)
def test_texts_that_are_refused(tape_server, path, body, param) -> None:
    refused(post(tape_server, path, body), 400, param=param)
