"""Drafts that are right about what the model wants to say, where that is not what it may say, or where it must stop.

N-grams draft the tape out of the prompt that holds it: always right behind the first token.
"""

import threading
import time

import httpx
import pytest

from tests.http.client import at_once, chat, complete, native, tape
from tests.http.test_structured import BAD, FORMAT, GOOD, validate

pytestmark = pytest.mark.server

FLAGS = ("corymb/tape", "--context-length", "2048", "--reasoning-parser", "qwen3")
DRAFTS = ("--speculative-algorithm", "NGRAM", "--speculative-num-draft-tokens", "6")
LONG = "every word of this comes once more, " * 8


@pytest.fixture(scope="module")
def drafting(serving):
    with serving(*FLAGS, *DRAFTS) as server:
        yield server


@pytest.fixture(scope="module")
def plain(serving):
    with serving(*FLAGS) as server:
        yield server


def said(response: httpx.Response) -> dict:
    """An answer without what differs from request to request, or by what was cached before."""
    assert response.status_code == 200, response.text
    answer = response.json()
    return {"choices": answer["choices"], "completion_tokens": answer["usage"]["completion_tokens"]}


def test_a_long_tape_is_drafted(drafting) -> None:
    answer = native(drafting, tape(LONG), {"max_new_tokens": 400}).json()
    assert answer["text"] == LONG
    assert answer["meta_info"]["spec_accept_length"] > 5


@pytest.mark.parametrize(
    ("script", "fields", "right"),
    [
        ("abSxyz", {"max_tokens": 5, "stop": ["S"]}, ("ab", "stop", None)),
        ("ab<eos>xyz", {"max_tokens": 5}, ("ab", "stop", 3)),
        ("abcdeS", {"max_tokens": 5, "stop": ["S"]}, ("abcde", "length", 5)),
        ("STOPabcdefghij", {"max_tokens": 20, "stop": ["STOP"]}, ("", "stop", None)),
        ("abcdefSTOPghij", {"max_tokens": 20, "stop": ["STOP"]}, ("abcdef", "stop", None)),
        ("abcdefgh", {"max_tokens": 7}, ("abcdefg", "length", 7)),
        ("abcdefgh", {"max_tokens": 3, "stop": ["d"]}, ("abc", "length", 3)),
        ("abcxdefgh", {"max_tokens": 9, "stop_token_ids": [ord("x")]}, ("abc", "stop", 4)),
        ("abcSdS", {"max_tokens": 9, "stop": ["S"], "min_tokens": 5}, ("abcSd", "stop", None)),
    ],
)
def test_an_accepted_run_ends_where_it_must(drafting, plain, script, fields, right) -> None:
    answer = said(complete(drafting, tape(script), **fields))
    (choice,) = answer["choices"]
    text, finish, count = right
    assert (choice["text"], choice["finish_reason"]) == (text, finish)
    assert count in (None, answer["completion_tokens"])
    assert answer == said(complete(plain, tape(script), **fields))


CONSTRAINED = {
    "schema": (BAD, {"response_format": FORMAT, "max_tokens": 400}),
    "valid": (GOOD, {"response_format": FORMAT, "max_tokens": 400}),
    "regex": ("12ab", {"regex": "[0-9]{4}"}),
    "behind a thought": (f"<think>x</think>```json {BAD}", {"response_format": FORMAT, "max_tokens": 400}),
}


@pytest.mark.parametrize("name", CONSTRAINED)
def test_drafts_never_leave_the_grammar(drafting, plain, name) -> None:
    script, fields = CONSTRAINED[name]
    answer = said(chat(drafting, tape(script), **fields))
    assert answer == said(chat(plain, tape(script), **fields))
    (choice,) = answer["choices"]
    assert choice["finish_reason"] == "stop"
    if name == "regex":
        assert choice["message"]["content"][:2] == "12"
    else:
        validate(choice["message"]["content"])


def test_others_go_on_as_ever_while_one_of_many_leaves(drafting, plain) -> None:
    asks = [*CONSTRAINED.values(), (LONG, {"max_tokens": 400}), ("short", {"max_tokens": 3})]
    expected = [said(chat(plain, tape(script), **fields)) for script, fields in asks]
    leaves = threading.Thread(target=leave_midway, args=(drafting,))
    leaves.start()
    calls = [lambda ask=ask: said(chat(drafting, tape(ask[0]), **ask[1])) for ask in asks * 2]
    assert at_once(calls) == expected * 2
    leaves.join()


def leave_midway(server) -> None:
    body = {"text": tape(LONG), "sampling_params": {"max_new_tokens": 400}, "stream": True}
    with server.client.stream("POST", "/generate", json=body) as response:
        next(response.iter_lines())
        time.sleep(0.01)
