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

The text of `tape` and `hash` follows from their definitions: `simulator.py` has them in a line each.
"""

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
def test_every_choice_of_every_prompt_arrives(simulated_tape, said, n) -> None:
    prompts = [tape(text) for text in said]
    expected = [text for text in said for _ in range(n)]
    num_tokens = sum(len(text.encode()) + 1 for text in expected)
    asked = {"n": n, "max_tokens": 20}
    whole = complete(simulated_tape, prompts, **asked).json()
    assert [(choice["index"], choice["text"]) for choice in whole["choices"]] == list(enumerate(expected))
    assert whole["usage"]["completion_tokens"] == num_tokens
    chunks = events(complete(simulated_tape, prompts, **asked, stream=True, stream_options={"include_usage": True}))
    assert [text_of(chunks, index) for index in range(len(expected))] == expected
    assert {finish_of(chunks, index)["finish_reason"] for index in range(len(expected))} == {"stop"}
    assert chunks[-1]["usage"]["completion_tokens"] == num_tokens
    answers = native(simulated_tape, prompts, {"n": n, "max_new_tokens": 20}).json()
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
def test_a_seed_decides(simulated_uniform, fields) -> None:
    asked = {"temperature": 1, "max_tokens": 16, "ignore_eos": True, **fields}

    def ask(seed: int, **more) -> list[str]:
        return texts(complete(simulated_uniform, "x", seed=seed, n=4, **asked, **more))

    first = ask(7)
    assert ask(7) == first
    assert len(set(first)) == 4
    assert not set(first) & set(ask(8))
    chunks = events(complete(simulated_uniform, "x", seed=7, n=4, stream=True, **asked))
    assert [text_of(chunks, index) for index in range(4)] == first
    assert texts(complete(simulated_uniform, "x", seed=7, **asked)) == first[:1]


@pytest.mark.parametrize("seed", [0, -1, 2**31, 2**63 - 1, -(2**63)])
def test_seeded_choices_are_the_same_by_every_route(simulated_uniform, seed) -> None:
    sampling = {"temperature": 1, "ignore_eos": True}
    one = texts(complete(simulated_uniform, "x", seed=seed, max_tokens=12, n=2, **sampling))
    other = native(simulated_uniform, "x", {"sampling_seed": seed, "max_new_tokens": 12, "n": 2, **sampling}).json()
    assert [answer["text"] for answer in other] == one
    talks = [chat(simulated_uniform, "x", seed=seed, max_tokens=12, **sampling).json() for _ in range(2)]
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
def test_a_batch_of_mixed_forms_keeps_its_order(simulated_hash, prompts, same) -> None:
    expected = [text for prompt in same for text in [hashed(prompt, 6)] * 2]
    assert texts(complete(simulated_hash, prompts, n=2, max_tokens=6)) == expected
    chunks = events(complete(simulated_hash, prompts, n=2, max_tokens=6, stream=True))
    assert [text_of(chunks, index) for index in range(len(expected))] == expected


BAD = ["", [], None, True, 97.5, {}, [""], [-1], [264], [2**63], [97, None], [97, "a"], [[97]]]


@pytest.mark.parametrize("bad", BAD, ids=str)
def test_one_bad_prompt_refuses_the_whole_batch(simulated_hash, bad) -> None:
    for prompts in ([bad], ["ab", bad], [bad, [97, 98]], [[97], bad, "ba"]):
        for fields in ({}, {"stream": True}, {"echo": True, "logprobs": 1, "max_tokens": 0}):
            refused(complete(simulated_hash, prompts, **{"max_tokens": 2, **fields}), 400, param="prompt")
    for name in ("text", "input_ids"):
        response = post(simulated_hash, "/generate", {name: [[97], bad] if name == "input_ids" else ["ab", bad]})
        assert refused(response, 400)["param"] == name
    assert texts(complete(simulated_hash, "ab", max_tokens=4)) == ["svdt"]


# Logprobs.

FIRST, SECOND = -0.3219, -1.3219


@pytest.mark.parametrize("top", [0, 1, 2, 20])
@pytest.mark.parametrize("text", ["abc", "aaaa", "a😀b", "ab<think>c"])
def test_each_position_has_its_own_logprobs(simulated_tape, text, top) -> None:
    asked = {"logprobs": True, "top_logprobs": top, "n": 2, "skip_special_tokens": False}
    whole = chat(simulated_tape, tape(text), **asked).json()
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
    chunks = events(chat(simulated_tape, tape(text), stream=True, **asked))
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
def test_an_echoed_prompt_is_scored_by_the_model(simulated_hash, prompts) -> None:
    for max_tokens in (0, 3, 0):  # the last with everything in the cache
        answer = complete(simulated_hash, prompts, echo=True, max_tokens=max_tokens, logprobs=2, n=2).json()
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
def test_penalties_change_the_text_as_they_should(simulated_tape, said, fields, text) -> None:
    asked = {"max_tokens": len(said), **fields}
    assert texts(complete(simulated_tape, [tape(said), tape("zz")], n=2, **asked))[:2] == [text] * 2
    assert chat(simulated_tape, tape(said), **asked).json()["choices"][0]["message"]["content"] == text
    assert native(simulated_tape, tape(said), {"max_new_tokens": len(said), **fields}).json()["text"] == text
