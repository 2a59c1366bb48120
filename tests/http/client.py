"""How tests talk to a server, simulated or whole."""

import concurrent.futures
import json
from collections.abc import Callable, Sequence
from typing import Any

import httpx

Json = dict[str, Any]


def post(server, path: str, body: Json, **options) -> httpx.Response:
    return server.client.post(path, json=body, **options)


def chat(server, content: str, **fields) -> httpx.Response:
    messages = [{"role": "user", "content": content}]
    return post(server, "/v1/chat/completions", {"messages": messages, "temperature": 0, **fields})


def complete(server, prompt: Any, **fields) -> httpx.Response:
    return post(server, "/v1/completions", {"prompt": prompt, "temperature": 0, **fields})


def native(server, text: Any, sampling: Json | None = None, **fields) -> httpx.Response:
    params = {"temperature": 0, **(sampling or {})}
    return post(server, "/generate", {"text": text, "sampling_params": params, **fields})


def tape(text: str) -> str:
    return "TAPE " + json.dumps(text, ensure_ascii=False)


def events(response: httpx.Response) -> list[Json]:
    """The events of a stream; checks that it has the one shape that streams have."""
    assert response.status_code == 200, response.text
    assert response.headers["content-type"].startswith("text/event-stream")
    blocks = response.text.split("\n\n")
    assert blocks.pop() == ""
    assert all(block.startswith("data: ") for block in blocks)
    assert blocks.pop() == "data: [DONE]"
    return [json.loads(block[6:]) for block in blocks]


def text_of(chunks: Sequence[Json], index: int = 0) -> str:
    return "".join(pieces_of(chunks, index))


def pieces_of(chunks: Sequence[Json], index: int = 0) -> list[str]:
    choices = [c for chunk in chunks for c in chunk["choices"] if c["index"] == index]
    return [c["text"] if "text" in c else c["delta"].get("content") or "" for c in choices]


def finish_of(chunks: Sequence[Json], index: int = 0) -> Json:
    """The choice of a stream's chunk that carries the finish; there must be one."""
    choices = [c for chunk in chunks for c in chunk["choices"] if c["index"] == index and c["finish_reason"]]
    assert len(choices) == 1
    return choices[0]


def refused(response: httpx.Response, status: int, *, param: str | None = None, code: str | None = None) -> Json:
    """Checks the one shape of errors."""
    assert response.status_code == status, response.text
    assert response.headers["content-type"] == "application/json"
    assert len(response.content) <= 16_384
    for word in ("Traceback", "AttributeError", "pydantic", "site-packages", 'File "'):
        assert word not in response.text
    assert set(response.json()) == {"error"}
    error = response.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["message"]
    if status == 400:
        assert error["type"] == "invalid_request_error"
    if param is not None:
        assert error["param"] == param
    if code is not None:
        assert error["code"] == code
    return error


def at_once(calls: Sequence[Callable[[], Any]]) -> list[Any]:
    """Runs everything at the same time; gives the results in order."""
    with concurrent.futures.ThreadPoolExecutor(len(calls)) as pool:
        return [future.result() for future in [pool.submit(call) for call in calls]]
