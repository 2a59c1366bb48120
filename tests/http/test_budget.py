"""How many tokens may follow a prompt."""

import threading
import time

import pytest

from tests.http.client import chat, complete, events, finish_of, native, refused, tape, text_of
from tests.http.conftest import KINDS, simulated

TOO_LONG = "context_length_exceeded"


@pytest.fixture(scope="module", params=KINDS)
def small_tape(request, serving):
    with small("tape", request.param, serving) as server:
        yield server


@pytest.fixture(scope="module", params=KINDS)
def small_hash(request, serving):
    with small("hash", request.param, serving) as server:
        yield server


def small(model: str, kind: str, serving):
    return (
        simulated(model, context_length=64)
        if kind == "simulated"
        else serving(f"corymb/{model}", "--context-length", "64")
    )


LIMITS = [
    ({"max_tokens": 3}, "abc"),
    ({"max_completion_tokens": 3}, "abc"),
    ({"max_tokens": 5, "max_completion_tokens": 3}, "abc"),
    ({"max_tokens": 1, "max_completion_tokens": 3}, "abc"),
    ({"max_tokens": 3.0}, "abc"),
]


@pytest.mark.parametrize(("fields", "text"), LIMITS, ids=str)
def test_chat_limits(small_tape, fields, text) -> None:
    choice = chat(small_tape, tape("abcdef"), **fields).json()["choices"][0]
    assert (choice["message"]["content"], choice["finish_reason"]) == (text, "length")


def test_no_tokens_at_all_may_be_asked_for(small_tape) -> None:
    for response in (chat(small_tape, tape("a"), max_tokens=0), complete(small_tape, tape("a"), max_tokens=0)):
        answer = response.json()
        assert answer["usage"]["completion_tokens"] == 0
        assert answer["choices"][0]["finish_reason"] == "length"
    chunks = events(chat(small_tape, tape("a"), max_tokens=0, stream=True))
    assert (text_of(chunks), finish_of(chunks)["finish_reason"]) == ("", "length")


@pytest.mark.parametrize("value", [-1, 1.5, "5", True, 2**31])
def test_limits_that_are_no_count(small_tape, value) -> None:
    refused(chat(small_tape, tape("a"), max_tokens=value), 400, param="max_tokens")


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("length", "fields"), [(65, {"max_tokens": 1}), (60, {"max_tokens": 10}), (64, {}), (65, {"max_tokens": 0})]
)
def test_what_does_not_fit_the_context(small_hash, length, fields, stream) -> None:
    error = refused(complete(small_hash, "a" * length, stream=stream, **fields), 400, code=TOO_LONG)
    assert "maximum context length is 64 tokens" in error["message"]


def test_an_ids_prompt_is_held_to_the_same_limit(small_hash) -> None:
    refused(complete(small_hash, [97] * 65, max_tokens=1), 400, code=TOO_LONG)
    refused(complete(small_hash, ["a", [97] * 65], max_tokens=1), 400, code=TOO_LONG)
    refused(native(small_hash, "a" * 65), 400, code=TOO_LONG)


def test_a_huge_list_of_ids_is_refused_by_its_length(small_hash) -> None:
    begun = time.monotonic()
    refused(complete(small_hash, [97] * 3_000_000, max_tokens=1), 400, code=TOO_LONG)
    refused(complete(small_hash, [[97] * 3_000_000], max_tokens=1), 400, code=TOO_LONG)
    assert time.monotonic() - begun < 5


def test_a_full_context_may_be_scored(small_hash) -> None:
    assert complete(small_hash, "a" * 64, max_tokens=0, echo=True, logprobs=1).status_code == 200


def test_without_a_limit_the_context_ends_it(small_hash, small_tape) -> None:
    answer = complete(small_hash, "a" * 60).json()
    assert answer["usage"]["completion_tokens"] == 4
    assert answer["choices"][0]["finish_reason"] == "length"
    assert complete(small_hash, "a").json()["usage"]["completion_tokens"] == 16
    answer = chat(small_tape, tape("a"), ignore_eos=True).json()
    assert answer["usage"]["total_tokens"] == 64
    assert native(small_hash, "a" * 60).json()["meta_info"]["completion_tokens"] == 4


def test_limits_are_cut_where_the_server_is_told_to() -> None:
    with simulated("hash", context_length=64, clamp_max_tokens=True) as server:
        assert complete(server, "a" * 60, max_tokens=100_000).json()["usage"]["completion_tokens"] == 4
        refused(complete(server, "a" * 65, max_tokens=1), 400, code=TOO_LONG)


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions", "/generate", "/tokenize"])
def test_a_huge_text_is_refused_soon_and_delays_nobody(small_hash, path) -> None:
    huge = "a" * 10_000_000
    bodies = {
        "/v1/completions": {"prompt": huge, "max_tokens": 1},
        "/v1/chat/completions": {"messages": [{"role": "user", "content": huge}]},
        "/generate": {"text": huge},
        "/tokenize": {"prompt": huge},
    }
    slowest = 0.0
    done = threading.Event()

    def probe() -> None:
        nonlocal slowest
        while not done.is_set():
            begun = time.monotonic()
            assert complete(small_hash, "ab", max_tokens=1).json()["choices"][0]["text"] == "s"
            slowest = max(slowest, time.monotonic() - begun)

    thread = threading.Thread(target=probe)
    thread.start()
    begun = time.monotonic()
    response = small_hash.client.post(path, json=bodies[path])
    took = time.monotonic() - begun
    done.set()
    thread.join()
    refused(response, 400, code=TOO_LONG)
    assert took < 5
    assert slowest < 0.5
