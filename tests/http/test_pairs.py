"""Features in pairs: each pair of fields gives what the model's definition says, in every way a server can run it.

The expected answers come from `simulator.py`, which computes one token at a time and knows no cache, batch or chunk.
Sampling noise and grammars are the product's own, so their cells are held to the server that does nothing but compute.
"""

import json
import re
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import combinations

import jsonschema
import pytest

from tests.http.client import events, finish_of, post, tape

pytestmark = pytest.mark.server

EOS = 257
AT_ONCE = 32
TEXT = "one two three two one"
SCHEMA = {
    "type": "object",
    "properties": {"one": {"type": "integer", "minimum": 0, "maximum": 99}, "two": {"enum": ["two", "three"]}},
    "required": ["one", "two"],
    "additionalProperties": False,
}
TOOL = {"type": "function", "function": {"name": "count", "parameters": SCHEMA}}
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
    "regex": {"regex": "one( [a-z]{3,5}){3}( one)?"},
    "response_format": {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA}}},
    "tools": {"tools": [TOOL]},
    "tool_choice": {"tools": [TOOL], "tool_choice": "required"},
    "reasoning": {"messages": [{"role": "user", "content": tape("<think>hm</think>" + TEXT)}]},
}
OWN = {"seed", "regex", "response_format", "tools", "tool_choice", "reasoning"}  # not in the simulator
PAIRS = [*((name,) for name in FIELDS), *combinations(FIELDS, 2)]
COMMON = ("--context-length", "1024", "--reasoning-parser", "qwen3", "--tool-call-parser", "qwen")
VARIANTS = {
    "computing only": ("--disable-radix-cache", "--disable-overlap-schedule", "--max-running-requests", "1"),
    "caching": (),
    "chunking": ("--chunked-prefill-size", "3", "--enable-mixed-chunk"),
    "retracting": ("--test-retract-interval", "3", "--max-total-tokens", "8192"),
    "speculating": (
        *("--speculative-algorithm", "NGRAM", "--speculative-num-draft-tokens", "6"),
        *("--speculative-dspark-verify-mode", "static"),  # whether drafting pays is not asked
    ),
    "paging": ("--page-size", "16", "--disable-overlap-schedule"),
}


@pytest.fixture(scope="module", params=VARIANTS)
def variant(request, serving):
    with serving("corymb/tape", *COMMON, *VARIANTS[request.param]) as server:
        server.speculates = request.param == "speculating"
        yield server


@pytest.fixture(scope="module")
def own(serving):
    """What cells that the simulator does not know give on the plainest server."""
    with serving("corymb/tape", *COMMON, *VARIANTS["computing only"]) as server:
        yield {pair: whole(server, pair) for pair in PAIRS if OWN & set(pair)}


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
    parts: dict = {name: message.get(name) or "" for name in ("content", "reasoning_content")}
    parts["calls"] = [call["function"] for call in message.get("tool_calls") or []]
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
    message["tool_calls"] = calls_of([delta for choice in choices for delta in choice["delta"].get("tool_calls") or []])
    return told(finish_of(chunks, index), message, {"content": entries} if entries else None)


def calls_of(deltas: list[dict]) -> list[dict]:
    calls: dict[int, dict] = {}
    for delta in deltas:
        call = calls.setdefault(delta["index"], {"function": {"name": "", "arguments": ""}})["function"]
        for name in call:
            call[name] += delta["function"].get(name) or ""
    return [calls[index] for index in sorted(calls)]


def rounded(logprobs: dict | None) -> object:
    """To four places: the simulator computes in double precision. Beyond the second best all are equal."""
    if logprobs is None:
        return None
    text = json.dumps(logprobs, sort_keys=True)
    entries = json.loads(text, parse_float=lambda number: round(float(number), 4))["content"]
    return [{**entry, "top_logprobs": entry["top_logprobs"][:2]} for entry in entries]


@pytest.fixture(scope="module")
def expected(simulated_tape, own) -> dict:
    return {pair: whole(simulated_tape, pair) for pair in PAIRS if not OWN & set(pair)} | own


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
    accepted = re.findall(r"^corymb_drafts_accepted_total{.*} (.+)$", variant.client.get("/metrics").text, re.MULTILINE)
    assert (sum(map(float, accepted)) > 0) == variant.speculates


def test_every_pair_gives_the_same_as_a_stream(variant, expected) -> None:
    check(together(lambda pair: streamed(variant, pair)), expected)


def test_grammars_are_kept_in_every_company(expected) -> None:
    for pair, answer in expected.items():
        if isinstance(answer, str) or "ignore_eos" in pair:
            continue
        for choice in answer:
            if "regex" in pair and choice["matched_stop"] in (EOS, None) and choice["finish_reason"] == "stop":
                assert re.fullmatch(FIELDS["regex"]["regex"], choice["content"]), pair
            if "response_format" in pair and choice["matched_stop"] == EOS:
                jsonschema.validate(json.loads(choice["content"]), SCHEMA)
            if "tool_choice" in pair and choice["finish_reason"] == "tool_calls":
                jsonschema.validate(json.loads(choice["calls"][0]["arguments"]), SCHEMA)


def test_the_cells_differ_where_their_features_act(expected) -> None:
    texts = {pair: expected[pair][0]["content"] for pair in PAIRS if len(pair) == 1}
    inert = {
        ("logprobs",),
        ("n",),
        ("cache_salt",),
        ("min_tokens",),
        ("skip_special_tokens",),
        ("tools",),
        ("reasoning",),
    }
    inert.add(("regex",))  # the text is one of the pattern's
    assert {pair for pair, text in texts.items() if text == TEXT} == inert
    assert len({json.dumps(answer) for answer in expected.values()}) > 40
