"""One question in every dialect: how it is asked, and where the answer keeps what all dialects tell."""

import itertools
import json
from collections.abc import Callable
from dataclasses import dataclass

import httpx

from tests.http.client import Json, pieces_of, tape


@dataclass(frozen=True, kw_only=True)
class Dialect:
    """`options`: the member that holds sampling fields, where they are not beside the prompt."""

    path: str
    prompt: Callable[[str], Json]
    limit: str
    options: str | None = None
    text: Callable[[Json], str]
    ending: Callable[[Json], str]
    was_cut: str  # what `ending` says of an answer that met its limit
    counts: Callable[[Json], tuple[int, int]]  # prompt, answer
    pieces: Callable[[httpx.Response], list[str]]  # of a stream's text
    stop: str = "stop"
    matched: Callable[[Json], object] = lambda _: None  # the stop string that ended it, where a dialect tells

    def param(self, field: str) -> str:
        """The name of a sampling field in errors."""
        return field if self.options is None else f"{self.options}.{field}"

    def raw(self, text: str, sampling: dict[str, str]) -> bytes:
        """A body; the values of `sampling` are JSON, or nearly."""
        fields = ", ".join(f"{json.dumps(name)}: {value}" for name, value in sampling.items())
        fields = fields if self.options is None else f"{json.dumps(self.options)}: {{{fields}}}"
        return f"{json.dumps(self.prompt(text))[:-1]}, {fields}}}".encode()

    def ask(self, server, text: str, **sampling: str) -> httpx.Response:
        """Sends it, greedy and with a limit unless `sampling` says otherwise."""
        body = self.raw(text, {"temperature": "0", self.limit: "20"} | sampling)
        return server.client.post(self.path, content=body, headers={"content-type": "application/json"})


def lines(response: httpx.Response) -> list[Json]:
    """The JSON of a stream: events, or lines."""
    assert response.status_code == 200, response.text
    texts = [line.removeprefix("data: ") for line in response.text.split("\n") if not line.startswith("event:")]
    return [json.loads(text) for text in texts if text and text != "[DONE]"]


def deltas(response: httpx.Response, kind: str, member: str) -> list[str]:
    return [event["delta"] if member == "" else event["delta"][member] for event in lines(response)
            if event["type"] == kind and (member == "" or member in event["delta"])]  # fmt: skip


def grown(response: httpx.Response) -> list[str]:
    """What each event adds to a text that they tell from its beginning."""
    texts = ["", *(event["text"] for event in lines(response))]
    assert all(later.startswith(earlier) for earlier, later in itertools.pairwise(texts))
    return [later[len(earlier) :] for earlier, later in itertools.pairwise(texts)]


def user(text: str) -> Json:
    return {"messages": [{"role": "user", "content": text}]}


def tokens(usage: Json) -> tuple[int, int]:
    return usage["prompt_tokens"], usage["completion_tokens"]


DIALECTS = {
    "chat": Dialect(
        path="/v1/chat/completions",
        prompt=user,
        limit="max_tokens",
        text=lambda answer: answer["choices"][0]["message"]["content"],
        ending=lambda answer: answer["choices"][0]["finish_reason"],
        was_cut="length",
        counts=lambda answer: tokens(answer["usage"]),
        pieces=lambda response: pieces_of(lines(response)),
        matched=lambda answer: answer["choices"][0]["matched_stop"],
    ),
    "completions": Dialect(
        path="/v1/completions",
        prompt=lambda text: {"prompt": text},
        limit="max_tokens",
        text=lambda answer: answer["choices"][0]["text"],
        ending=lambda answer: answer["choices"][0]["finish_reason"],
        was_cut="length",
        counts=lambda answer: tokens(answer["usage"]),
        pieces=lambda response: pieces_of(lines(response)),
        matched=lambda answer: answer["choices"][0]["matched_stop"],
    ),
    "native": Dialect(
        path="/generate",
        prompt=lambda text: {"text": text},
        limit="max_new_tokens",
        options="sampling_params",
        text=lambda answer: answer["text"],
        ending=lambda answer: answer["meta_info"]["finish_reason"]["type"],
        was_cut="length",
        counts=lambda answer: tokens(answer["meta_info"]),
        pieces=grown,
        matched=lambda answer: answer["meta_info"]["finish_reason"].get("matched"),
    ),
    "responses": Dialect(
        path="/v1/responses",
        prompt=lambda text: {"input": text},
        limit="max_output_tokens",
        text=lambda answer: answer["output"][0]["content"][0]["text"],
        ending=lambda answer: answer["status"],
        was_cut="incomplete",
        counts=lambda answer: (answer["usage"]["input_tokens"], answer["usage"]["output_tokens"]),
        pieces=lambda response: deltas(response, "response.output_text.delta", ""),
    ),
    "messages": Dialect(
        path="/v1/messages",
        prompt=user,
        limit="max_tokens",
        text=lambda answer: answer["content"][0]["text"],
        ending=lambda answer: answer["stop_reason"],
        was_cut="max_tokens",
        counts=lambda answer: (
            answer["usage"]["input_tokens"] + answer["usage"]["cache_read_input_tokens"],
            answer["usage"]["output_tokens"],
        ),
        pieces=lambda response: deltas(response, "content_block_delta", "text"),
        stop="stop_sequences",
        matched=lambda answer: answer["stop_sequence"],
    ),
    "ollama": Dialect(
        path="/api/chat",
        prompt=lambda text: {**user(text), "stream": False},
        limit="num_predict",
        options="options",
        text=lambda answer: answer["message"]["content"],
        ending=lambda answer: answer["done_reason"],
        was_cut="length",
        counts=lambda answer: (answer["prompt_eval_count"], answer["eval_count"]),
        pieces=lambda response: [line["message"]["content"] for line in lines(response)],
    ),
}


def good(server, dialect: Dialect) -> bool:
    """Whether the server still answers as it should."""
    return dialect.text(dialect.ask(server, tape("abc")).json()) == "abc"
