"""What is true of one dialect is true of all: limits, refusals, counts.

Faults of other servers that this looks for, wherever they could hide:

- The limit on new tokens is honoured under one name or route only: test_an_answer_ends_at_its_limit.
- A limit that is no count ends the engine: test_a_limit_that_is_no_count_is_refused.
- A prompt too long is told in words that agents do not look for: test_a_prompt_too_long_is_told_in_known_words.
- NaN, infinity and their like pass checks of one side only: test_a_poisonous_value_is_refused_by_name.
- Requests and tokens are counted by choice, or not at all in streams: test_the_accounts_agree,
  test_streams_are_counted_as_whole_answers.
- A warm prompt is counted twice, or without its cached part: test_a_warm_prompt_counts_as_much_as_a_cold_one.
"""

import json

import pytest

from tests.http.client import tape
from tests.http.conftest import simulated
from tests.http.dialects import DIALECTS, good


@pytest.fixture(params=DIALECTS)
def dialect(request):
    return DIALECTS[request.param]


def message_of(response) -> str:
    """The sentence of a 400, in whichever shape the dialect has."""
    assert response.status_code == 400, response.text
    assert "Traceback" not in response.text
    error = response.json()["error"]
    return error if isinstance(error, str) else error["message"]


@pytest.mark.parametrize("limit", [1, 3, 7])
def test_an_answer_ends_at_its_limit(tape_server, dialect, limit) -> None:
    answer = dialect.ask(tape_server, tape("abcdef"), **{dialect.limit: str(limit)}).json()
    assert dialect.text(answer) == "abcdef"[:limit]
    assert (dialect.ending(answer) == dialect.was_cut) == (limit < 7)  # the seventh token is the end
    assert dialect.counts(answer)[1] == limit


@pytest.mark.parametrize("value", ["-3", "1.5", '"3"', "true", "NaN", "1e999", "2147483648", "[3]"])
def test_a_limit_that_is_no_count_is_refused(tape_server, dialect, value) -> None:
    assert dialect.limit in message_of(dialect.ask(tape_server, tape("abc"), **{dialect.limit: value}))


@pytest.fixture(scope="module")
def narrow():
    with simulated("tape", context_length=64) as server:
        yield server


@pytest.mark.parametrize("length", [64, 65, 1000, 1_000_000])
def test_a_prompt_too_long_is_told_in_known_words(narrow, dialect, length) -> None:
    assert "maximum context length is 64 tokens" in message_of(dialect.ask(narrow, "a" * length))
    assert dialect.text(dialect.ask(narrow, tape("a"), **{dialect.limit: "2"}).json()) == "a"


NO_NUMBERS = ["NaN", "Infinity", "-Infinity", "1e999", "-1e999", '"NaN"', '"1"', "true", "[1]", "{}"]
WRONG = {
    "temperature": [*NO_NUMBERS, "-0.1", "1e30"],
    "top_p": [*NO_NUMBERS, "0", "-1", "1.0001"],
    "top_k": [*NO_NUMBERS, "-5", "1.5", "9223372036854775808"],
    "min_p": [*NO_NUMBERS, "2", "-0.1"],
    "presence_penalty": [*NO_NUMBERS, "3", "-2.1"],
    "frequency_penalty": [*NO_NUMBERS, "3", "-2.1"],
    "seed": [*NO_NUMBERS, "1e40", "1.5", "9223372036854775808"],
}


SHORT = ("messages", "ollama")  # their errors have a sentence, and no member that names the field
FEWER = {"messages": ("temperature", "top_p", "top_k")}  # sampling fields of dialects that have not all of them
POISONED = [(name, field) for name in DIALECTS for field in FEWER.get(name, WRONG)]


@pytest.mark.parametrize(("name", "field"), POISONED)
def test_a_poisonous_value_is_refused_by_name(tape_server, name, field) -> None:
    dialect = DIALECTS[name]
    for value in WRONG[field]:
        response = dialect.ask(tape_server, tape("abc"), **{field: value})
        assert field in message_of(response), value
        if name not in SHORT:
            assert response.json()["error"]["param"] == dialect.param(field)
    assert good(tape_server, dialect)


def scraped(server) -> tuple[float, float, float]:
    """Requests, prompt tokens and answer tokens so far."""
    lines = server.client.get("/metrics").text.splitlines()
    names = ("requests_total", "prompt_tokens_total", "generation_tokens_total")
    return tuple(
        sum(float(line.rsplit(" ", 1)[1]) for line in lines if line.startswith(f"corymb_{name}{{")) for name in names
    )


@pytest.mark.parametrize("text", ["", "abc", "A😀é", "x" * 15])
def test_the_accounts_agree(tape_server, dialect, text) -> None:
    before = scraped(tape_server)
    prompt, answer = dialect.counts(dialect.ask(tape_server, tape(text)).json())
    assert answer == len(text.encode()) + 1
    after = scraped(tape_server)
    assert tuple(now - then for now, then in zip(after, before, strict=True)) == (1, prompt, answer)
    message_of(dialect.ask(tape_server, tape(text), temperature="-1"))
    assert scraped(tape_server) == after, "a refused request is none"


def test_streams_are_counted_as_whole_answers(tape_server, dialect) -> None:
    before = scraped(tape_server)
    _, answer = dialect.counts(dialect.ask(tape_server, tape("abc")).json())
    whole = scraped(tape_server)
    body = json.loads(dialect.raw(tape("abc"), {"temperature": "0", dialect.limit: "20"})) | {"stream": True}
    assert tape_server.client.post(dialect.path, json=body).status_code == 200
    streamed = scraped(tape_server)
    assert answer == 4
    assert [now - then for now, then in zip(streamed, whole, strict=True)] == [
        now - then for now, then in zip(whole, before, strict=True)
    ]


def test_a_warm_prompt_counts_as_much_as_a_cold_one(tape_server, dialect) -> None:
    text = tape(f"warm {dialect.path}"[:14])
    cold, warm = (dialect.counts(dialect.ask(tape_server, text).json()) for _ in range(2))
    assert cold == warm
