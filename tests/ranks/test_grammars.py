"""Two ranks follow a grammar as one does: each makes its own masks, from the same tokens."""

import json
from concurrent.futures import ThreadPoolExecutor

import pytest

pytestmark = [pytest.mark.server, pytest.mark.timeout(300)]

SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 12}, "big": {"type": "boolean"}},
    "required": ["name", "big"],
    "additionalProperties": False,
}
FORMAT = {"type": "json_schema", "json_schema": {"name": "thing", "schema": SCHEMA}}


def answers(server) -> list[str]:
    """To prompts with and without a grammar, at once."""

    def ask(number: int) -> str:
        body = {"messages": [{"role": "user", "content": "x" * number}], "temperature": 0, "max_tokens": 60}
        response = server.client.post(
            "/v1/chat/completions", json=body | ({"response_format": FORMAT} if number % 2 else {})
        )
        assert response.status_code == 200, response.text
        return response.json()["choices"][0]["message"]["content"]

    with ThreadPoolExecutor(6) as pool:
        return list(pool.map(ask, range(1, 7)))


def test_two_ranks_follow_a_grammar_as_one_does(tiny, serving) -> None:
    exact = ("--dtype", "float32")
    with serving(tiny("llama"), *exact) as server:
        one = answers(server)
    assert all(set(json.loads(text)) == {"name", "big"} for text in one[::2])
    with serving(tiny("llama"), *exact, "--tp-size", "2", "--check-plans", "--test-retract-interval", "7") as server:
        assert answers(server) == one
