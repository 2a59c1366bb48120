"""POST /v1/messages and /v1/messages/count_tokens: Anthropic's API."""

from typing import Any

from corymb.serve.answer import encode
from corymb.serve.anthropic_answer import AnthropicAnswer
from corymb.serve.anthropic_fields import MEMBERS, chat_body, count_fields, message_fields, names
from corymb.serve.body import read_json
from corymb.serve.call import Call
from corymb.serve.chat_completions import chat_fields
from corymb.serve.chatting import Chatting
from corymb.serve.errors import in_words_of, invalid
from corymb.serve.parts import Parts
from corymb.serve.requests import generate, name_ignored_members, read_fields, read_model

# Values that mean the same in both dialects once they are read.
_SHARED = ("max_tokens", "temperature", "top_p", "top_k", "rid", "priority", "routing_key", "cache_salt", "extra_key")


class Anthropic:
    """Reads, runs and answers messages, as chat completions."""

    def __init__(self, parts: Parts) -> None:
        info, settings = parts.engine.info, parts.settings
        self._parts = parts
        self._fields = message_fields(info, settings)
        self._count_fields = count_fields()
        self._chat_fields = chat_fields(info, settings)
        self._chatting = Chatting(parts)

    async def messages(self, call: Call) -> None:
        """Writes the next message of a conversation."""
        values = read_fields(self._fields, await read_json(call, self._parts.settings), call)
        model = read_model(self._parts.engine.info, values)
        if "max_tokens" not in values:
            raise invalid("max_tokens", "is required: how many tokens the answer may have.")
        chat = self._chat_values(values, call)
        with in_words_of(names(values)):
            generation = await self._chatting.generation(chat, kind="msg")
        answer = AnthropicAnswer(generation.asks[0].rid, model, generation.usage)
        with in_words_of(names(values)):  # a grammar may yet be refused
            await generate(call, self._parts, generation, answer, stream=values.get("stream", False))

    async def count_tokens(self, call: Call) -> None:
        """How many input tokens a conversation has."""
        values = read_fields(self._count_fields, await read_json(call, self._parts.settings), call)
        read_model(self._parts.engine.info, values)
        chat = self._chat_values(values, call)
        with in_words_of(names(values)):
            rendered = await self._chatting.render(chat)
        await call.answer(200, encode({"input_tokens": len(rendered.token_ids)}))

    def _chat_values(self, values: dict[str, Any], call: Call) -> dict[str, Any]:
        thinks = bool(self._parts.parsers.mark_ids.closing)
        body = chat_body(values, limits_thinking=thinks)
        with in_words_of(names(values)):
            chat = read_fields(self._chat_fields, body, call, names=names(values))
        name_ignored_members(call, values, MEMBERS | ({"thinking": ("type", "budget_tokens")} if thinks else {}))
        chat |= {name: values[name] for name in _SHARED if name in values}
        return chat | ({"stop": values["stop_sequences"]} if "stop_sequences" in values else {})
