"""Reasoning is apart from the answer in every dialect, streamed or not, wherever the answer ends.

Faults of other servers that this looks for: half of a mark leaks into either side, the reader never switches, a stop
string inside a thought ends the answer, a thought that meets the limit comes as content, or not at all.
"""

import json
from collections.abc import Callable
from dataclasses import dataclass

import httpx
import pytest

from tests.http.client import Json, post, tape
from tests.http.conftest import simulated
from tests.http.dialects import DIALECTS, deltas, lines


@dataclass(frozen=True, kw_only=True)
class Thinker:
    """Where a dialect keeps a thought, and the text behind it."""

    whole: Callable[[Json], tuple[str, str]]
    thought: Callable[[httpx.Response], list[str]]  # its pieces in a stream


def joined(parts: list[Json], kind: str, member: str) -> str:
    return "".join(part[member] for part in parts if part["type"] == kind)


def of_items(answer: Json) -> tuple[str, str]:
    contents = {item["type"]: item["content"] for item in answer["output"]}
    thought = joined(contents.get("reasoning", []), "reasoning_text", "text")
    return thought, joined(contents.get("message", []), "output_text", "text")


def of_message(message: Json, member: str) -> tuple[str, str]:
    return message.get(member) or "", message["content"] or ""


def of_chunks(response: httpx.Response) -> list[str]:
    found = [choice["delta"].get("reasoning_content") for chunk in lines(response) for choice in chunk["choices"]]
    return [piece for piece in found if piece]


THINKERS = {
    "chat": Thinker(
        whole=lambda answer: of_message(answer["choices"][0]["message"], "reasoning_content"), thought=of_chunks
    ),
    "responses": Thinker(
        whole=of_items, thought=lambda response: deltas(response, "response.reasoning_text.delta", "")
    ),
    "messages": Thinker(
        whole=lambda answer: (
            joined(answer["content"], "thinking", "thinking"),
            joined(answer["content"], "text", "text"),
        ),
        thought=lambda response: deltas(response, "content_block_delta", "thinking"),
    ),
    "ollama": Thinker(
        whole=lambda answer: of_message(answer["message"], "thinking"),
        thought=lambda response: [line["message"].get("thinking", "") for line in lines(response)],
    ),
}
# What is said, how it is cut ("limit" or "stop"), the thought, the text.
SAID = [
    ("<think>weigh < it</think>Answer </thin done", {}, "weigh < it", "Answer </thin done"),
    ("<think>a </thi</thin</think>b", {}, "a </thi</thin", "b"),
    ("<think>é😀</think>\n\n한 👍🏽", {}, "é😀", "한 👍🏽"),
    ("<think></think>x", {}, "", "x"),
    ("no <thin thought", {}, "", "no <thin thought"),
    ("<think>it never ends", {}, "it never ends", ""),
    ("<think>never </think", {}, "never </think", ""),
    ("<think>weigh < it</think>Answer", {"limit": 8}, "weigh <", ""),
    ("<think>one</think>two", {"limit": 7}, "one", "tw"),
    ("<think>weigh it</think>Wait it out", {"stop": ["it"]}, "weigh it", "Wa"),
    ("<think>a</think>b", {"stop": ["</think>", "<think>"]}, "a", "b"),
    ("<think>stop</think>", {"stop": ["stop"]}, "stop", ""),
]


@pytest.fixture(scope="module")
def server():
    with simulated("tape", reasoning_parser="qwen3") as server:
        yield server


@pytest.mark.parametrize(("text", "fields", "thought", "answer"), SAID, ids=str)
@pytest.mark.parametrize("name", THINKERS)
def test_a_thought_is_apart_from_the_answer(server, name, text, fields, thought, answer) -> None:
    dialect, thinker = DIALECTS[name], THINKERS[name]
    stop = fields.get("stop", [])
    sampling = {"temperature": "0", dialect.limit: str(fields.get("limit", 80)), dialect.stop: json.dumps(stop)}
    body = json.loads(dialect.raw(tape(text), sampling))
    whole = post(server, dialect.path, body)
    assert whole.status_code == 200, whole.text
    assert thinker.whole(whole.json()) == (thought, answer)
    assert (dialect.ending(whole.json()) == dialect.was_cut) == ("limit" in fields)
    streamed = post(server, dialect.path, body | {"stream": True})
    assert "".join(thinker.thought(streamed)) == thought
    assert "".join(dialect.pieces(streamed)) == answer
