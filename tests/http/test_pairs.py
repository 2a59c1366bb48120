"""Features in pairs: each pair of fields gives what the model's definition says, in every way a server can run it.

The expected answers come from `simulator.py`, which computes one token at a time and knows no cache, batch or chunk.
Sampling noise is the product's own, so seeded cells are held to the server that does nothing but compute instead.
"""

import json
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import combinations

import pytest

from tests.http.client import events, finish_of, post, tape

pytestmark = pytest.mark.server

AT_ONCE = 32
TEXT = "one two three two one"
FIELDS = {
    "stop": {"stop": ["thr", "zz"], "include_stop_str_in_output": True},
    "stop_token_ids": {"stop_token_ids": [ord("h")]},
    "logprobs": {"logprobs": True, "top_logprobs": 3},
    "presence_penalty": {"presence_penalty": 1.5},
    "frequency_penalty": {"frequency_penalty": 0.7},
    "repetition_penalty": {"repetition_penalty": 1.2},
    "logit_bias": {"logit_bias": {str(ord("t")): -9, str(ord("u")): 1}},
    "n": {"n": 2},
    "seed": {"seed": 7, "temperature": 1.0, "top_p": 0.9, "top_k": 5, "min_p": 0.01},
    "min_tokens": {"min_tokens": 12},
    "ignore_eos": {"ignore_eos": True, "skip_special_tokens": False},
    "max_tokens": {"max_tokens": 9},
    "cache_salt": {"cache_salt": "mine"},
    "skip_special_tokens": {"skip_special_tokens": False},
}
PAIRS = [*((name,) for name in FIELDS), *combinations(FIELDS, 2)]
VARIANTS = {
    "computing only": ("--disable-radix-cache", "--disable-overlap-schedule", "--max-running-requests", "1"),
    "caching": (),
    "chunking": ("--chunked-prefill-size", "3", "--enable-mixed-chunk"),
    "retracting": ("--test-retract-interval", "3", "--max-total-tokens", "2048"),
    "paging": ("--page-size", "16", "--disable-overlap-schedule"),
}


@pytest.fixture(scope="module", params=VARIANTS)
def variant(request, serving):
    with serving("corymb/tape", "--context-length", "512", *VARIANTS[request.param]) as server:
        yield server


@pytest.fixture(scope="module")
def seeded(serving):
    """What seeded cells give on the plainest server."""
    with serving("corymb/tape", "--context-length", "512", *VARIANTS["computing only"]) as server:
        yield {pair: whole(server, pair) for pair in PAIRS if "seed" in pair}


def body(pair: Sequence[str]) -> dict:
    fields = {name: value for feature in pair for name, value in FIELDS[feature].items()}
    messages = [{"role": "user", "content": tape(TEXT)}]
    return {"messages": messages, "temperature": 0, "max_tokens": 40, **fields}


def whole(server, pair: Sequence[str]) -> list[dict] | str:
    """The choices; or what the refusal said."""
    response = post(server, "/v1/chat/completions", body(pair))
    if response.status_code == 400:
        return response.json()["error"]["message"]
    assert response.status_code == 200, response.text
    return [told(choice, choice["message"], choice["logprobs"]) for choice in response.json()["choices"]]


def told(choice: dict, message: dict, logprobs: dict | None) -> dict:
    """What must be the same in every way of running a cell."""
    parts = {name: message.get(name) or "" for name in ("content", "reasoning_content")}
    return {"index": choice["index"], **parts, "logprobs": rounded(logprobs)} | {
        name: choice[name] for name in ("finish_reason", "matched_stop")
    }


def streamed(server, pair: Sequence[str]) -> list[dict] | str:
    """The same, put together from a stream."""
    response = post(server, "/v1/chat/completions", {**body(pair), "stream": True})
    if response.status_code == 400:
        return response.json()["error"]["message"]
    chunks = events(response)
    return [joined(chunks, index) for index in range(FIELDS["n"]["n"] if "n" in pair else 1)]


def joined(chunks: list[dict], index: int) -> dict:
    choices = [choice for chunk in chunks for choice in chunk["choices"] if choice["index"] == index]
    entries = [entry for choice in choices if choice["logprobs"] for entry in choice["logprobs"]["content"]]
    message = {
        name: "".join(choice["delta"].get(name) or "" for choice in choices)
        for name in ("content", "reasoning_content")
    }
    return told(finish_of(chunks, index), message, {"content": entries} if entries else None)


def rounded(logprobs: dict | None) -> object:
    """To four places: the simulator computes in double precision. Beyond the second best all are equal."""
    if logprobs is None:
        return None
    text = json.dumps(logprobs, sort_keys=True)
    entries = json.loads(text, parse_float=lambda number: round(float(number), 4))["content"]
    return [{**entry, "top_logprobs": entry["top_logprobs"][:2]} for entry in entries]


@pytest.fixture(scope="module")
def expected(simulated_tape, seeded) -> dict:
    return {pair: whole(simulated_tape, pair) for pair in PAIRS if "seed" not in pair} | seeded


def together(run: Callable[[Sequence[str]], object]) -> list:
    with ThreadPoolExecutor(AT_ONCE) as pool:
        return list(pool.map(run, PAIRS))


def check(answers: list, expected: dict) -> None:
    wrong = {pair: answer for pair, answer in zip(PAIRS, answers, strict=True) if answer != expected[pair]}
    assert wrong == {}, {pair: expected[pair] for pair in wrong}
    for pair, answer in zip(PAIRS, answers, strict=True):
        assert not isinstance(answer, str) or all(name in answer for name in pair), answer


def test_every_pair_gives_what_the_definition_says(variant, expected) -> None:
    # Many at once, so cells also share batches; twice, so that the second time meets what the first one cached.
    for _ in range(2):
        check(together(lambda pair: whole(variant, pair)), expected)


def test_every_pair_gives_the_same_as_a_stream(variant, expected) -> None:
    check(together(lambda pair: streamed(variant, pair)), expected)


def test_the_cells_differ_where_their_features_act(expected) -> None:
    texts = {pair: expected[pair][0]["content"] for pair in PAIRS if len(pair) == 1}
    inert = {("logprobs",), ("n",), ("cache_salt",), ("min_tokens",), ("skip_special_tokens",)}
    assert {pair for pair, text in texts.items() if text == TEXT} == inert
    assert len({json.dumps(answer) for answer in expected.values()}) > 40
