"""Faults that people reported of other servers, tried with more inputs of each kind.

| what went wrong there                                            | tests here                                       |
|------------------------------------------------------------------|--------------------------------------------------|
| choices are dropped or overwritten when there are several        | test_every_choice_of_every_prompt_arrives        |
| a seed does not reach the sampler                                | test_a_seed_decides, test_seeded_choices…        |
| an empty prompt ends the engine for everybody                    | test_one_bad_prompt_refuses_the_whole_batch      |
| prompts of a batch come back in another order or form            | test_a_batch_of_mixed_forms_keeps_its_order      |
| logprobs repeat position 0, or lose entries in streams           | test_each_position_has_its_own_logprobs          |
| scores of an echoed prompt are those of what follows             | test_an_echoed_prompt_is_scored_by_the_model     |
| penalties do nothing, or count the wrong tokens                  | test_penalties_change_the_text_as_they_should    |
| a cache hit changes greedy text                                  | test_no_cached_prefix_changes_a_text             |
| salts and keys are joined without a mark between them, and meet  | test_what_is_told_apart_shares_no_cache          |

The text of `tape` and `hash` follows from their definitions: `simulator.py` has them in a line each.
"""

import itertools

import numpy as np
import pytest

from tests.http.client import chat, complete, events, finish_of, native, post, refused, tape, text_of
from tests.http.simulator import TOKENIZER, hash_logits


def texts(response) -> list[str]:
    assert response.status_code == 200, response.text
    return [choice["text"] for choice in response.json()["choices"]]


def hashed(prompt: str | list[int], count: int) -> str:
    """What the model hash says after a prompt."""
    token_ids = TOKENIZER.encode(prompt) if isinstance(prompt, str) else list(prompt)
    output: list[int] = []
    while len(output) < count:
        output.append(int(hash_logits(token_ids, output).argmax()))
    return bytes(output).decode()


# Several choices, and seeds.


@pytest.mark.parametrize(("said", "n"), [(["hi"], 3), (["hi", "", "yo!"], 3), (["é😀"] * 4, 2), (["abc"], 16)], ids=str)
def test_every_choice_of_every_prompt_arrives(tape_server, said, n) -> None:
    prompts = [tape(text) for text in said]
    expected = [text for text in said for _ in range(n)]
    num_tokens = sum(len(text.encode()) + 1 for text in expected)
    asked = {"n": n, "max_tokens": 20}
    whole = complete(tape_server, prompts, **asked).json()
    assert [(choice["index"], choice["text"]) for choice in whole["choices"]] == list(enumerate(expected))
    assert whole["usage"]["completion_tokens"] == num_tokens
    chunks = events(complete(tape_server, prompts, **asked, stream=True, stream_options={"include_usage": True}))
    assert [text_of(chunks, index) for index in range(len(expected))] == expected
    assert {finish_of(chunks, index)["finish_reason"] for index in range(len(expected))} == {"stop"}
    assert chunks[-1]["usage"]["completion_tokens"] == num_tokens
    answers = native(tape_server, prompts, {"n": n, "max_new_tokens": 20}).json()
    assert [answer["text"] for answer in answers] == expected


SAMPLING = [
    {},
    {"temperature": 0.3},
    {"top_p": 0.5},
    {"top_k": 40},
    {"min_p": 0.001},
    {"logit_bias": {"97": 1}},
    {"presence_penalty": 1.5},
]


@pytest.mark.parametrize("fields", SAMPLING, ids=str)
def test_a_seed_decides(uniform_server, fields) -> None:
    asked = {"temperature": 1, "max_tokens": 16, "ignore_eos": True, **fields}

    def ask(seed: int, **more) -> list[str]:
        return texts(complete(uniform_server, "x", seed=seed, n=4, **asked, **more))

    first = ask(7)
    assert ask(7) == first
    assert len(set(first)) == 4
    assert not set(first) & set(ask(8))
    chunks = events(complete(uniform_server, "x", seed=7, n=4, stream=True, **asked))
    assert [text_of(chunks, index) for index in range(4)] == first
    assert texts(complete(uniform_server, "x", seed=7, **asked)) == first[:1]


@pytest.mark.parametrize("seed", [0, -1, 2**31, 2**63 - 1, -(2**63)])
def test_seeded_choices_are_the_same_by_every_route(uniform_server, seed) -> None:
    sampling = {"temperature": 1, "ignore_eos": True}
    one = texts(complete(uniform_server, "x", seed=seed, max_tokens=12, n=2, **sampling))
    other = native(uniform_server, "x", {"sampling_seed": seed, "max_new_tokens": 12, "n": 2, **sampling}).json()
    assert [answer["text"] for answer in other] == one
    talks = [chat(uniform_server, "x", seed=seed, max_tokens=12, **sampling).json() for _ in range(2)]
    assert talks[0]["choices"] == talks[1]["choices"]


# Forms of prompts.

FORMS = [
    (["a", [97], "a"], ["a", "a", "a"]),
    (["é", [195, 169], "e"], ["é", "é", "e"]),
    ([[97], [98], [97, 98]], ["a", "b", "ab"]),
    ([[256, 97], [97, 256], [256]], [[256, 97], [97, 256], [256]]),
    ([" ", "\n", "\x00"], [" ", "\n", "\x00"]),
]


@pytest.mark.parametrize(("prompts", "same"), FORMS, ids=str)
def test_a_batch_of_mixed_forms_keeps_its_order(hash_server, prompts, same) -> None:
    expected = [text for prompt in same for text in [hashed(prompt, 6)] * 2]
    assert texts(complete(hash_server, prompts, n=2, max_tokens=6)) == expected
    chunks = events(complete(hash_server, prompts, n=2, max_tokens=6, stream=True))
    assert [text_of(chunks, index) for index in range(len(expected))] == expected


BAD = ["", [], None, True, 97.5, {}, [""], [-1], [264], [2**63], [97, None], [97, "a"], [[97]]]


@pytest.mark.parametrize("bad", BAD, ids=str)
def test_one_bad_prompt_refuses_the_whole_batch(hash_server, bad) -> None:
    for prompts in ([bad], ["ab", bad], [bad, [97, 98]], [[97], bad, "ba"]):
        for fields in ({}, {"stream": True}, {"echo": True, "logprobs": 1, "max_tokens": 0}):
            refused(complete(hash_server, prompts, **{"max_tokens": 2, **fields}), 400, param="prompt")
    for name in ("text", "input_ids"):
        response = post(hash_server, "/generate", {name: [[97], bad] if name == "input_ids" else ["ab", bad]})
        assert refused(response, 400)["param"] == name
    assert texts(complete(hash_server, "ab", max_tokens=4)) == ["svdt"]


# Logprobs.

FIRST, SECOND = -0.3219, -1.3219


@pytest.mark.parametrize("top", [0, 1, 2, 20])
@pytest.mark.parametrize("text", ["abc", "aaaa", "a😀b", "ab<think>c"])
def test_each_position_has_its_own_logprobs(tape_server, text, top) -> None:
    asked = {"logprobs": True, "top_logprobs": top, "n": 2, "skip_special_tokens": False}
    whole = chat(tape_server, tape(text), **asked).json()
    expected = [*TOKENIZER.encode(text), 257]
    for choice in whole["choices"]:
        entries = choice["logprobs"]["content"]
        assert [len(entry["top_logprobs"]) for entry in entries] == [top] * len(expected)
        assert [entry["logprob"] for entry in entries] == pytest.approx([FIRST] * len(expected), abs=1e-3)
        best = [[other["logprob"] for other in entry["top_logprobs"][:2]] for entry in entries]
        assert best == [pytest.approx([FIRST, SECOND][:top], abs=1e-3)] * len(expected)
        for entry, token in zip(entries, expected, strict=True):
            assert entry["bytes"] == ([token] if token < 256 else list(entry["token"].encode()))
            assert [other["bytes"] for other in entry["top_logprobs"][:1]] == [entry["bytes"]][:top]
    chunks = events(chat(tape_server, tape(text), stream=True, **asked))
    for index, choice in enumerate(whole["choices"]):
        parts = [part["logprobs"] for chunk in chunks for part in chunk["choices"] if part["index"] == index]
        assert [entry for part in parts if part for entry in part["content"]] == choice["logprobs"]["content"]


def scores(prompt: str) -> list[float | None]:
    """The logprobs of a prompt's tokens under the model hash."""
    token_ids = TOKENIZER.encode(prompt)
    found: list[float | None] = [None]
    for at in range(1, len(token_ids)):
        logits = hash_logits(token_ids[:at], [])
        found.append(float(logits[token_ids[at]] - np.log(np.exp(logits).sum())))
    return found


@pytest.mark.parametrize("prompts", [["svdt"], ["absvdt", "basvdt"], ["a", "ab", "abs", "absv"], ["é" * 9]], ids=str)
def test_an_echoed_prompt_is_scored_by_the_model(hash_server, prompts) -> None:
    for max_tokens in (0, 3, 0):  # the last with everything in the cache
        answer = complete(hash_server, prompts, echo=True, max_tokens=max_tokens, logprobs=2, n=2).json()
        for choice, prompt in zip(answer["choices"], [p for p in prompts for _ in range(2)], strict=True):
            assert choice["text"] == prompt + hashed(prompt, max_tokens)
            values, expected = choice["logprobs"]["token_logprobs"], scores(prompt + hashed(prompt, max_tokens))
            assert values[0] is None
            assert values[1:] == pytest.approx(expected[1:], abs=1e-3)
        assert answer["usage"]["completion_tokens"] == max_tokens * len(answer["choices"])


# Penalties. Worked out by hand: the token of the tape has 10, the byte after it 9, all others 0.

PENALTIES = [
    ("aaaa", {"frequency_penalty": 0.6}, "aaba"),
    ("aab", {"frequency_penalty": 2}, "abc"),
    ("abab", {"presence_penalty": 2}, "abac"),
    ("aab", {"presence_penalty": -2}, "aab"),
    ("zzzz", {"repetition_penalty": 1.2}, "{zzz"),
    ("aaaa", {"repetition_penalty": 1.05}, "aaaa"),
    ("aaaa", {"presence_penalty": 2, "logit_bias": {"98": 2}}, "babb"),
    ("aaaa", {"presence_penalty": 0.9, "frequency_penalty": 0.3}, "abaa"),
]


@pytest.mark.parametrize(("said", "fields", "text"), PENALTIES, ids=str)
def test_penalties_change_the_text_as_they_should(tape_server, said, fields, text) -> None:
    asked = {"max_tokens": len(said), **fields}
    assert texts(complete(tape_server, [tape(said), tape("zz")], n=2, **asked))[:2] == [text] * 2
    assert chat(tape_server, tape(said), **asked).json()["choices"][0]["message"]["content"] == text
    assert native(tape_server, tape(said), {"max_new_tokens": len(said), **fields}).json()["text"] == text


# The cache.

PREFIXES = ["abc" * 33, "a" * 64, "x", "xy", "q" * 15, "q" * 16, "q" * 17, "q" * 33]


@pytest.mark.server
def test_no_cached_prefix_changes_a_text(whole_hash) -> None:
    def ask(prompt: str) -> tuple[str, int]:
        answer = complete(whole_hash, prompt, max_tokens=12).json()
        return answer["choices"][0]["text"], answer["usage"]["prompt_tokens_details"]["cached_tokens"]

    assert whole_hash.client.post("/flush_cache").status_code == 200
    for mark, prompt in zip("ABCDEFGH", PREFIXES, strict=True):
        said, _ = ask(prompt)
        assert said == hashed(prompt, 12)
        assert ask(prompt) == (said, len(prompt) - 1)
        turn = prompt + said + "?"  # the next turn of the same conversation
        assert ask(turn)[0] == hashed(turn, 12)
        assert ask(turn) == (hashed(turn, 12), len(turn) - 1)
        for at in {0, len(prompt) // 2, len(prompt) - 1}:
            changed = prompt[:at] + mark + prompt[at + 1 :]
            assert ask(changed) == (hashed(changed, 12), at)


APART = {
    "none": {},
    "a": {"cache_salt": "a"},
    "A": {"cache_salt": "A"},
    "a and a blank": {"cache_salt": "a "},
    "extra key a": {"extra_key": "a"},
    "abc": {"cache_salt": "abc"},
    "ab, c": {"cache_salt": "ab", "extra_key": "c"},
    "a, bc": {"cache_salt": "a", "extra_key": "bc"},
    "c, ab": {"cache_salt": "c", "extra_key": "ab"},
    "composed": {"cache_salt": "\u00e9"},
    "decomposed": {"cache_salt": "e\u0301"},
    "long": {"cache_salt": "x" * 256},
    "a little shorter": {"cache_salt": "x" * 255},
}


@pytest.mark.server
def test_what_is_told_apart_shares_no_cache(whole_hash) -> None:
    prompt = "told apart, " * 6

    def ask(keys: dict, path: str = "/v1/completions") -> int:
        body = {"prompt": prompt, "max_tokens": 1, **keys}
        if path == "/generate":
            body = {"text": prompt, "sampling_params": {"max_new_tokens": 1}, **keys}
            return post(whole_hash, path, body).json()["meta_info"]["cached_tokens"]
        return post(whole_hash, path, body).json()["usage"]["prompt_tokens_details"]["cached_tokens"]

    assert whole_hash.client.post("/flush_cache").status_code == 200
    assert [ask(keys) for keys in APART.values()] == [0] * len(APART)
    warm = itertools.cycle(["/v1/completions", "/generate"])
    assert [ask(keys, next(warm)) for keys in APART.values()] == [len(prompt) - 1] * len(APART)
