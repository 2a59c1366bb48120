"""Ollama's API: /api/chat, /api/generate, and what its clients ask of a model."""

from datetime import UTC, datetime
from typing import Any, Literal

from corymb.serve.answer import encode
from corymb.serve.body import read_json
from corymb.serve.call import Call
from corymb.serve.chat_completions import chat_fields
from corymb.serve.chatting import Chatting
from corymb.serve.errors import in_words_of, invalid, shown
from corymb.serve.fields import Field, ignored, string
from corymb.serve.ollama_answer import OllamaAnswer
from corymb.serve.ollama_fields import (
    NAMES,
    chat_body,
    chat_options,
    ollama_chat_fields,
    ollama_generate_fields,
    option_fields,
)
from corymb.serve.parts import Parts
from corymb.serve.requests import generate, read_fields, read_model, table

Json = dict[str, Any]


def show_fields() -> dict[str, Field]:
    """Fields of /api/show."""
    return table([string("model", 256), string("name", 256), ignored("verbose", "everything is told")])


class Ollama:
    """Reads, runs and answers requests of Ollama's clients, as chat completions."""

    def __init__(self, parts: Parts) -> None:
        info = parts.engine.info
        self._parts = parts
        self._fields = {"chat": ollama_chat_fields(info), "generate": ollama_generate_fields(info)}
        self._option_fields = option_fields()
        self._show_fields = show_fields()
        self._chat_fields = chat_fields(info, parts.settings)
        self._chatting = Chatting(parts)

    async def chat(self, call: Call) -> None:
        """POST /api/chat."""
        await self._answer(call, "chat", "messages")

    async def generate(self, call: Call) -> None:
        """POST /api/generate."""
        await self._answer(call, "generate", "prompt")

    async def _answer(self, call: Call, kind: Literal["chat", "generate"], prompt: str) -> None:
        values = read_fields(self._fields[kind], await self._read(call), call)
        model = read_model(self._parts.engine.info, values, latest=True)
        options = self._options(values, call)
        body, raw = chat_body(values), values.get("prompt", "") if values.get("raw") else None
        if raw is not None:
            self._check_raw(values, call)
        if not values.get(prompt):
            del body["messages"]
        with in_words_of(NAMES if kind == "chat" else NAMES | {"messages": "prompt"}):
            chat = read_fields(self._chat_fields, body, call, names=NAMES) | options
            if "messages" not in chat:
                await call.answer(200, encode(_loaded(kind, model)))
                return
            chat |= {name: values[name] for name in ("logprobs", "top_logprobs") if name in values}
            generation = await self._chatting.generation(chat, kind="ollama", limit="options.num_predict", raw=raw)
            answer = OllamaAnswer(kind, model, generation)
            await generate(call, self._parts, generation, answer, stream=values.get("stream", True))

    async def _read(self, call: Call) -> Json:
        return await read_json(call, self._parts.settings, declared=False)  # clients and guides of Ollama do not

    def _check_raw(self, values: Json, call: Call) -> None:
        if values.get("system"):
            raise invalid("system", "has no place in a `raw` prompt: write it into `prompt`.")
        if "think" in values:
            call.ignored["think"] = None  # only a chat template could heed it

    def _options(self, values: Json, call: Call) -> Json:
        options = values.get("options", {})
        if not isinstance(options, dict):
            raise invalid("options", f"must be an object, not {shown(options)}.")
        return chat_options(read_fields(self._option_fields, options, call, prefix="options."))

    # What is there.

    async def tags(self, call: Call) -> None:
        """GET /api/tags: the models; there is one, with its names."""
        await call.answer(200, encode({"models": [self._card(name) for name in self._parts.engine.info.names]}))

    async def running(self, call: Call) -> None:
        """GET /api/ps: the models in memory."""
        info = self._parts.engine.info
        on_gpu = info.scheduler.get("device", "cpu") != "cpu"
        cards = [self._card(name) for name in info.names]
        cards = [card | {"size_vram": card["size"] if on_gpu else 0} for card in cards]
        await call.answer(200, encode({"models": cards}))

    async def show(self, call: Call) -> None:
        """POST /api/show: what a model is."""
        values = read_fields(self._show_fields, await self._read(call), call)
        info, settings, parsers = self._parts.engine.info, self._parts.settings, self._parts.parsers
        for name in ("name", "model"):  # the first is the older name of the second
            read_model(info, {"model": values[name]} if name in values else {}, latest=True)
        architecture = info.architecture
        answer = {
            "modified_at": _time(info.started_at),
            "parameters": "\n".join(f"{name} {value}" for name, value in settings.sampling_defaults.items()),
            "details": self._details(),
            "model_info": {
                "general.architecture": architecture,
                f"{architecture}.context_length": info.context_length,
                f"{architecture}.vocab_size": info.vocab_size,
            },
            "capabilities": [
                "completion",
                *(["tools"] if parsers.syntax is not None else []),
                *(["thinking"] if parsers.mark_ids.closing else []),
            ],
        }
        await call.answer(200, encode(answer))

    async def version(self, call: Call) -> None:
        """GET /api/version."""
        await call.answer(200, encode({"version": self._parts.engine.info.version}))

    def _card(self, name: str) -> Json:
        info = self._parts.engine.info
        return {
            "name": name,
            "model": name,
            "modified_at": _time(info.started_at),
            "size": info.scheduler.get("weights_bytes", 0),
            "digest": "",
            "details": self._details(),
        }

    def _details(self) -> Json:
        info = self._parts.engine.info
        return {
            "parent_model": "",
            "format": "safetensors",
            "family": info.architecture,
            "families": [info.architecture],
            "parameter_size": "",
            "quantization_level": info.scheduler.get("dtype", ""),
        }


def _loaded(kind: str, model: str) -> Json:
    """The answer to a request that only wants the model loaded."""
    said: Json = {"response": ""} if kind == "generate" else {"message": {"role": "assistant", "content": ""}}
    created_at = datetime.now(UTC).isoformat().replace("+00:00", "Z")
    return {"model": model, "created_at": created_at, **said, "done": True, "done_reason": "load"}


def _time(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat().replace("+00:00", "Z")
