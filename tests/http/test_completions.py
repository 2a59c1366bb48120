"""Completions: forms of prompts, choices, seeds, penalties, logprobs, echo and limits."""

import pytest

from tests.http.client import complete, events, finish_of, post, refused, tape, text_of


def texts(response) -> list[str]:
    assert response.status_code == 200, response.text
    return [choice["text"] for choice in response.json()["choices"]]


def test_prompts_of_every_form_in_order(hash_server) -> None:
    answer = complete(hash_server, ["ab", [97, 98], "ba"], n=2, max_tokens=4, model="hash").json()
    assert [choice["index"] for choice in answer["choices"]] == list(range(6))
    assert [choice["text"] for choice in answer["choices"]] == ["svdt"] * 4 + ["uzrs"] * 2
    assert answer["usage"]["prompt_tokens"] == 6
    assert answer["usage"]["completion_tokens"] == 24


@pytest.mark.parametrize("prompt", ["ab", [97, 98], ["ab"], [[97, 98]]], ids=str)
def test_one_prompt_in_every_form(hash_server, prompt) -> None:
    assert texts(complete(hash_server, prompt, max_tokens=4)) == ["svdt"]


def test_streamed_batch_is_the_same(hash_server) -> None:
    chunks = events(complete(hash_server, ["ab", [97, 98], "ba"], n=2, max_tokens=4, stream=True))
    assert [text_of(chunks, index) for index in range(6)] == ["svdt"] * 4 + ["uzrs"] * 2
    assert [finish_of(chunks, index)["finish_reason"] for index in range(6)] == ["length"] * 6


def test_large_batch(hash_server) -> None:
    answer = complete(hash_server, ["ab"] * 2000, max_tokens=1)
    assert texts(answer) == ["s"] * 2000


@pytest.mark.parametrize(("count", "n"), [(4097, 1), (2049, 2), (33, 128)])
def test_batch_limit_is_named(hash_server, count, n) -> None:
    error = refused(complete(hash_server, ["ab"] * count, n=n, max_tokens=1), 400)
    assert "4096" in error["message"]


def test_server_lives_after_bad_prompts(hash_server) -> None:
    for prompt in ([""], [], [[]], ["a", 1], ["a", []], [1, "a"]):
        refused(complete(hash_server, prompt, max_tokens=4), 400, param="prompt")
    assert texts(complete(hash_server, "ab", max_tokens=4)) == ["svdt"]


# Seeds.


def test_seeded_choices_repeat_and_differ(uniform_server) -> None:
    def ask(seed: int, n: int = 4) -> list[str]:
        return texts(complete(uniform_server, "x", n=n, seed=seed, temperature=1, max_tokens=16))

    assert ask(7) == ask(7)
    assert len(set(ask(7))) == 4
    assert not set(ask(7, 16)) & set(ask(8, 16))
    assert not set(ask(-1, 4)) & set(ask(-2, 4))
    assert not set(ask(-1, 4)) & set(ask(2**63 - 1, 4))
    assert ask(7, 2) == ask(7)[:2]


def test_without_a_seed_answers_differ(uniform_server) -> None:
    assert texts(complete(uniform_server, "x", temperature=1)) != texts(complete(uniform_server, "x", temperature=1))


@pytest.mark.parametrize("temperature", [0, 1e-6, 1e-300])
def test_a_temperature_near_zero_is_greedy(simulated_uniform, temperature) -> None:
    response = complete(simulated_uniform, "x", temperature=temperature)
    assert response.status_code == 200
    assert simulated_uniform.simulator.seen[-1].sampling.temperature == 0


# Which field reaches the engine as what.

PENALTIES = [
    ({"presence_penalty": 2}, "abaa"),
    ({"frequency_penalty": 2}, "abab"),
    ({"repetition_penalty": 1.2}, "baaa"),
    ({}, "aaaa"),
    ({"logit_bias": {"97": -100}}, "bbbb"),
    ({"logit_bias": {"122": 100}}, "zzzz"),
]


@pytest.mark.parametrize(("fields", "text"), PENALTIES, ids=str)
def test_penalties(tape_server, fields, text) -> None:
    assert texts(complete(tape_server, tape("aaaa"), max_tokens=4, **fields)) == [text]


ENDS = [
    ("ab<eos>cd<|im_end|>ef", {"max_tokens": 8, "ignore_eos": True}, "abcdef", "length", None, 8),
    ("ab<eos>cd<|im_end|>ef", {"ignore_eos": True, "stop_token_ids": [100]}, "abc", "stop", 100, 5),
    ("ab<eos>cd", {"ignore_eos": True, "stop_token_ids": [100], "no_stop_trim": True}, "abcd", "stop", 100, 5),
    ("ab", {"min_tokens": 5}, "abxxx", "stop", 257, 6),
    ("abSTOPcd", {"min_tokens": 8, "stop": ["STOP"]}, "abSTOPcd", "stop", 257, 9),
    ("ab<|im_end|>cd", {}, "ab", "stop", 259, 3),
    ("ab<think>cd", {"skip_special_tokens": False}, "ab<think>cd", "stop", 257, 6),
    ("ab<think>cd", {}, "abcd", "stop", 257, 6),
]


@pytest.mark.parametrize(("text", "fields", "seen", "reason", "matched", "count"), ENDS, ids=str)
def test_how_a_completion_ends(tape_server, text, fields, seen, reason, matched, count) -> None:
    answer = complete(tape_server, tape(text), **{"max_tokens": 20, **fields}).json()
    choice = answer["choices"][0]
    assert (choice["text"], choice["finish_reason"], choice["matched_stop"]) == (seen, reason, matched)
    assert answer["usage"]["completion_tokens"] == count


# Logprobs.

FIRST, SECOND, REST = -0.3219, -1.3219, -10.3219


def close(a: float, b: float) -> bool:
    return abs(a - b) < 1e-3


def chat_logprobs(server, **fields):
    body = {"messages": [{"role": "user", "content": tape("abc")}], "temperature": 0, **fields}
    return post(server, "/v1/chat/completions", {**body, "logprobs": True, "top_logprobs": 2})


def check_chat_logprobs(content) -> None:
    for entry, (token, other) in zip(content, ["ab", "bc", "cd"], strict=False):
        assert (entry["token"], entry["bytes"]) == (token, [ord(token)])
        assert close(entry["logprob"], FIRST)
        assert [top["token"] for top in entry["top_logprobs"]] == [token, other]
        assert close(entry["top_logprobs"][0]["logprob"], FIRST)
        assert close(entry["top_logprobs"][1]["logprob"], SECOND)
    assert len(content) in (3, 4)  # an entry for the token that ended it


def test_chat_logprobs(tape_server) -> None:
    answer = chat_logprobs(tape_server).json()
    check_chat_logprobs(answer["choices"][0]["logprobs"]["content"])
    assert len(answer["choices"][0]["logprobs"]["content"]) == answer["usage"]["completion_tokens"]


def test_streamed_chat_logprobs_are_the_same(tape_server) -> None:
    chunks = events(chat_logprobs(tape_server, stream=True))
    parts = [chunk["choices"][0]["logprobs"] for chunk in chunks]
    content = [entry for part in parts if part for entry in part["content"]]
    check_chat_logprobs(content)
    assert content == chat_logprobs(tape_server).json()["choices"][0]["logprobs"]["content"]


def test_logprobs_of_an_echoed_prompt(hash_server) -> None:
    def ask():
        return complete(hash_server, "abcdefgh", echo=True, max_tokens=0, logprobs=1).json()

    cold, warm = ask(), ask()
    for answer in (cold, warm):
        choice = answer["choices"][0]
        assert (choice["text"], choice["finish_reason"]) == ("abcdefgh", "length")
        logprobs = choice["logprobs"]
        assert logprobs["tokens"] == list("abcdefgh")
        assert logprobs["text_offset"] == list(range(8))
        assert logprobs["token_logprobs"][0] is None
        assert logprobs["top_logprobs"][0] is None
        assert all(close(value, -10.0119) for value in logprobs["token_logprobs"][1:])
        assert all(close(max(top.values()), -0.0119) for top in logprobs["top_logprobs"][1:])
        assert answer["usage"]["completion_tokens"] == 0
    assert cold["choices"] == warm["choices"]


def test_echo_goes_on_with_the_completion(hash_server) -> None:
    answer = complete(hash_server, "ab", echo=True, max_tokens=4, logprobs=0).json()["choices"][0]
    assert answer["text"] == "absvdt"
    assert answer["logprobs"]["tokens"] == list("absvdt")
    assert answer["logprobs"]["text_offset"] == list(range(6))
    chunks = events(complete(hash_server, "ab", echo=True, max_tokens=4, logprobs=0, stream=True))
    assert text_of(chunks) == "absvdt"
    assert complete(hash_server, [97, 98], echo=True, max_tokens=4).json()["choices"][0]["text"] == "absvdt"


def test_offsets_and_spelling_of_half_characters(tape_server) -> None:
    answer = complete(tape_server, tape("a😀b"), logprobs=0, max_tokens=6).json()["choices"][0]
    assert answer["text"] == "a😀b"
    assert answer["logprobs"]["text_offset"] == [0, 1, 1, 1, 1, 2]
    assert answer["logprobs"]["tokens"][1] == "bytes:\\xf0"
    assert [len(top) for top in answer["logprobs"]["top_logprobs"]] == [1] * 6


def test_special_tokens_that_are_not_shown_move_no_offset(tape_server) -> None:
    answer = complete(tape_server, tape("a<think>b"), logprobs=0).json()["choices"][0]
    assert answer["logprobs"]["tokens"][:3] == ["a", "<think>", "b"]
    assert answer["logprobs"]["text_offset"][:3] == [0, 1, 1]


# Usage.


def test_cached_tokens_are_told_and_zero_is_not_null(hash_server) -> None:
    def ask():
        return complete(hash_server, "~ a prompt for this test", max_tokens=1).json()["usage"]

    cold, warm = ask(), ask()
    assert cold["prompt_tokens_details"] == {"cached_tokens": 0}
    assert 0 < warm["prompt_tokens_details"]["cached_tokens"] < warm["prompt_tokens"]


def test_cache_salt_keeps_caches_apart(hash_server) -> None:
    def ask(salt: str) -> int:
        answer = complete(hash_server, "~ a prompt to be salted", max_tokens=1, cache_salt=salt).json()
        return answer["usage"]["prompt_tokens_details"]["cached_tokens"]

    assert [ask("x") > 0, ask("x") > 0, ask("y") > 0] == [False, True, False]


def test_stream_tells_usage_only_when_asked(tape_server) -> None:
    chunks = events(complete(tape_server, tape("abc"), stream=True))
    assert not any(chunk.get("usage") for chunk in chunks)
    chunks = events(complete(tape_server, tape("abc"), stream=True, stream_options={"include_usage": True}))
    assert not any(chunk.get("usage") for chunk in chunks[:-1])
    assert (chunks[-1]["choices"], chunks[-1]["usage"]["completion_tokens"]) == ([], 4)


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions"])
def test_continuous_usage_never_falls(tape_server, path) -> None:
    options = {"include_usage": True, "continuous_usage_stats": True}
    body = {"stream": True, "temperature": 0, "stream_options": options}
    body |= {"prompt": tape("abc")} if "chat" not in path else {"messages": [{"role": "user", "content": tape("abc")}]}
    chunks = events(post(tape_server, path, body))
    counts = [chunk["usage"]["completion_tokens"] for chunk in chunks]
    assert counts == sorted(counts)
    assert counts[-1] == 4
    assert len({chunk["usage"]["prompt_tokens"] for chunk in chunks}) == 1


BAD_OPTIONS = [5, [], "x", {"include_usage": 1}, {"continuous_usage_stats": "yes"}]


@pytest.mark.parametrize("options", BAD_OPTIONS, ids=str)
def test_stream_options_that_are_refused(tape_server, options) -> None:
    error = refused(complete(tape_server, tape("a"), stream=True, stream_options=options), 400)
    assert error["param"].startswith("stream_options")
