"""/v1/responses: OpenAI's Responses API."""

from dataclasses import dataclass
from typing import Any

import msgspec

from corymb.serve.answer import encode
from corymb.serve.body import read_json
from corymb.serve.call import Call
from corymb.serve.chat_completions import chat_fields
from corymb.serve.chatting import Chatting
from corymb.serve.errors import ApiError, in_words_of, shown
from corymb.serve.generation import Generation
from corymb.serve.parts import Parts
from corymb.serve.requests import generate, name_ignored_members, new_rid, now_s, read_fields, read_model, read_nothing
from corymb.serve.response_pages import as_stored, page, read_whole
from corymb.serve.response_store import ResponseStore, Stored
from corymb.serve.responses_answer import Json, Keep, ResponsesAnswer
from corymb.serve.responses_fields import LOGPROBS, MEMBERS, NAMES, chat_body, response_fields
from corymb.serve.responses_items import Item, read_items

_PREFIX = "/v1/responses/"
# Fields with other names or values in a chat completion; all others pass.
_OWN = {
    *("model", "input", "instructions", "max_output_tokens", "tools", "tool_choice", "parallel_tool_calls", "text"),
    *("reasoning", "include", "top_logprobs", "metadata", "stream", "store"),
    *("previous_response_id", "max_tool_calls"),
}
# What clients expect of every tool that an answer repeats.
_UNTOLD = {"description": None, "parameters": None, "strict": None}


@dataclass(frozen=True, slots=True)
class _Asked:
    """What a body asks for, checked."""

    values: dict[str, Any]
    model: str
    items: list[Item]  # of the responses before it
    new_items: list[Item]
    chat: dict[str, Any]  # the same as values of a chat completion


class Responses:
    """Reads, runs, answers and keeps responses. Owns the store, where there is one."""

    def __init__(self, parts: Parts) -> None:
        info, settings = parts.engine.info, parts.settings
        self._parts = parts
        self._fields = response_fields(info, settings)
        self._chat_fields = chat_fields(info, settings)
        self._chatting = Chatting(parts)
        self._store = ResponseStore() if settings.enable_response_store else None
        self._running: set[str] = set()  # ids of responses that are being generated

    async def create(self, call: Call) -> None:
        """POST /v1/responses."""
        asked = await self._read(call)
        values = asked.values
        keeps = self._store is not None and values.get("store", True)
        with in_words_of(NAMES):
            generation = await self._chatting.generation(asked.chat, kind="resp", limit="max_output_tokens")
        response = _response(generation, values, asked.chat, asked.model) | {"store": keeps}
        keep = self._keeper(asked) if keeps else _forget
        answer = ResponsesAnswer(response, generation.usage, keep)
        self._running.add(response["id"])
        try:
            with in_words_of(NAMES):  # a grammar may yet be refused
                await generate(call, self._parts, generation, answer, stream=values.get("stream", False))
        finally:
            self._running.discard(response["id"])

    async def count_tokens(self, call: Call) -> None:
        """POST /v1/responses/input_tokens: how many input tokens a response would have."""
        asked = await self._read(call)
        with in_words_of(NAMES):
            rendered = await self._chatting.render(asked.chat)
        await call.answer(200, encode({"object": "response.input_tokens", "input_tokens": len(rendered.token_ids)}))

    async def _read(self, call: Call) -> "_Asked":
        values = read_fields(self._fields, await read_json(call, self._parts.settings), call)
        model = read_model(self._parts.engine.info, values)
        items = self._history(values.get("previous_response_id"))
        if "input" not in values:
            raise ApiError("invalid_value", "`input` is required.", param="input")
        new_items = read_items(values["input"])
        chat = self._chat_values(values, [*items, *new_items], call)
        return _Asked(values, model, items, new_items, chat)

    def _history(self, previous: str | None) -> list[Item]:
        if previous is None:
            return []
        conversation: list[Item] = msgspec.json.decode(self._stored(previous, "previous_response_id").conversation)
        return conversation

    def _keeper(self, asked: _Asked) -> Keep:
        store = self._store
        assert store is not None
        has_logprobs = asked.chat.get("logprobs", False)

        def keep(response: Json) -> None:
            conversation = encode([*asked.items, *asked.new_items, *response["output"]])
            told = as_stored(response["id"], asked.new_items)
            store.put(response["id"], Stored(encode(response), encode(told), conversation, has_logprobs))

        return keep

    def _chat_values(self, values: dict[str, Any], items: list[Item], call: Call) -> dict[str, Any]:
        body = chat_body(values, items)
        with in_words_of(NAMES):
            chat = read_fields(self._chat_fields, body, call, names=NAMES)
        name_ignored_members(call, values, MEMBERS)
        chat |= {name: value for name, value in values.items() if name not in _OWN and name not in chat}
        chat["rid"] = new_rid("resp").replace("-", "_")
        if "max_output_tokens" in values:
            chat["max_tokens"] = values["max_output_tokens"]
        include = values.get("include", [])
        if LOGPROBS in include or values.get("top_logprobs"):
            chat |= {"logprobs": True, "top_logprobs": values.get("top_logprobs", 0)}
        call.ignored |= {f"include.{name}": None for name in include if name != LOGPROBS}
        return chat

    # What was kept.

    async def one(self, call: Call) -> None:
        """GET /v1/responses/{id} and /v1/responses/{id}/input_items."""
        response_id, slash, rest = call.path.removeprefix(_PREFIX).partition("/")
        if rest == "input_items":
            items = msgspec.json.decode(self._stored(response_id, "id").input_items)
            await call.answer(200, encode(page(items, call)))
        elif slash:
            raise ApiError("route_not_found", "There is no such route.")
        else:
            stored = self._stored(response_id, "id")
            read_whole(call, has_logprobs=stored.has_logprobs)
            await call.answer(200, stored.response)

    async def delete(self, call: Call) -> None:
        """DELETE /v1/responses/{id}."""
        response_id = call.path.removeprefix(_PREFIX)
        self._stored(response_id, "id")
        if self._store is not None:
            self._store.pop(response_id)
        await call.answer(200, encode({"id": response_id, "object": "response", "deleted": True}))

    async def cancel(self, call: Call) -> None:
        """POST /v1/responses/{id}/cancel: ends a response that is being generated."""
        response_id, _, rest = call.path.removeprefix(_PREFIX).partition("/")
        if rest != "cancel":
            raise ApiError("route_not_found", "There is no such route.")
        await read_nothing(call, self._parts.settings)
        if response_id not in self._running:
            message = f"No response {shown(response_id)} is being generated."
            raise ApiError("response_not_found", message, param="id")
        self._parts.engine.abort(response_id)
        await call.answer(200, encode({"id": response_id, "object": "response", "status": "cancelled"}))

    def _stored(self, response_id: str, param: str) -> Stored:
        stored = None if self._store is None else self._store.get(response_id)
        if stored is None:
            raise ApiError("response_not_found", f"No response {shown(response_id)} is stored.", param=param)
        return stored


def _forget(_: Json) -> None:
    """Keeps nothing."""


def _response(generation: Generation, values: dict[str, Any], chat: dict[str, Any], model: str) -> Json:
    """The members that are known before anything is generated."""
    sampling = generation.asks[0].sampling
    text, reasoning = values.get("text", {}), values.get("reasoning", {})
    return {
        "id": generation.asks[0].rid,
        "object": "response",
        "created_at": now_s(),
        "completed_at": None,
        "status": "in_progress",
        "background": False,
        "error": None,
        "frequency_penalty": sampling.frequency_penalty,
        "incomplete_details": None,
        "instructions": values.get("instructions"),
        "max_output_tokens": values.get("max_output_tokens"),
        "max_tool_calls": values.get("max_tool_calls"),
        "metadata": values.get("metadata", {}),
        "model": model,
        "output": [],
        "parallel_tool_calls": values.get("parallel_tool_calls", True),
        "presence_penalty": sampling.presence_penalty,
        "previous_response_id": values.get("previous_response_id"),
        "prompt_cache_key": None,
        "reasoning": {"effort": reasoning.get("effort"), "summary": None},
        "safety_identifier": None,
        "service_tier": "default",
        "temperature": sampling.temperature,
        "text": {"format": text.get("format") or {"type": "text"}},
        "tool_choice": values.get("tool_choice", "auto"),
        "tools": [_UNTOLD | tool for tool in values.get("tools", [])],
        "top_logprobs": chat.get("top_logprobs", 0),
        "top_p": sampling.top_p,
        "truncation": "disabled",
        "usage": None,
    }
