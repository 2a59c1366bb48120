"""POST /tokenize and /detokenize."""

import asyncio
from typing import Any

from corymb.serve.answer import encode
from corymb.serve.asks import Room
from corymb.serve.body import read_json
from corymb.serve.call import Call
from corymb.serve.conversation import Conversation, conversation_fields
from corymb.serve.engine import ServedModel
from corymb.serve.errors import ApiError, in_words_of, invalid, shown
from corymb.serve.fields import Field, boolean, read_token_ids, refused, string
from corymb.serve.parts import Parts
from corymb.serve.prompts import PromptEncoder, read_prompts
from corymb.serve.requests import read_fields, read_model, table
from corymb.serve.settings import HttpSettings

_INLINE_TOKENS = 4096  # more is decoded in a thread


def tokenize_fields(info: ServedModel, settings: HttpSettings) -> dict[str, Field]:
    """Fields of /tokenize."""
    own = [
        string("model", 256),
        Field("prompt", "text, or list of texts", lambda param, value: _read_texts(param, value, info, settings)),
        boolean("return_prompt"),
    ]
    return table(own, conversation_fields())


def detokenize_fields(info: ServedModel, settings: HttpSettings) -> dict[str, Field]:
    """Fields of /detokenize."""
    own = [
        string("model", 256),
        Field(
            "tokens",
            "list of token ids, or list of these",
            lambda param, value: _read_ids(param, value, info.vocab_size, settings.max_choices),
        ),
        boolean("skip_special_tokens"),
        refused("prompt", "give `tokens`"),
    ]
    return table(own)


class TextRoutes:
    """Turns text into ids and back, as generation would."""

    def __init__(self, parts: Parts) -> None:
        info, settings = parts.engine.info, parts.settings
        self._parts = parts
        self._tokenize_fields = tokenize_fields(info, settings)
        self._detokenize_fields = detokenize_fields(info, settings)
        self._encoder = PromptEncoder(parts.tokenizer, Room(info.context_length, clamp=False))
        self._conversation = Conversation(parts.chat_template, self._encoder, short_ids=parts.parsers.short_ids)

    async def tokenize(self, call: Call) -> None:
        """Ids of a text, of several, or of a conversation through the chat template."""
        values = await self._read(call, self._tokenize_fields)
        if ("prompt" in values) == ("messages" in values):
            raise invalid("prompt", "or `messages` is required, and not both.")
        answer = await (self._conversation_ids(values) if "messages" in values else self._text_ids(values))
        answer["max_model_len"] = self._parts.engine.info.context_length
        await call.answer(200, encode(answer))

    async def _text_ids(self, values: dict[str, Any]) -> dict[str, Any]:
        given = values["prompt"]
        special = values.get("add_special_tokens", True)
        texts = [given] if isinstance(given, str) else given
        token_ids = await self._encoder.encode(texts, add_special_tokens=special)
        if isinstance(given, str):
            return {"tokens": token_ids[0], "count": len(token_ids[0])}
        return {"tokens": token_ids, "count": [len(ids) for ids in token_ids]}

    async def _conversation_ids(self, values: dict[str, Any]) -> dict[str, Any]:
        with in_words_of({"prompt": "messages"}):
            rendered = await self._conversation.render(values)
        answer: dict[str, Any] = {"tokens": rendered.token_ids, "count": len(rendered.token_ids)}
        if values.get("return_prompt", True):
            answer["prompt"] = rendered.text
        return answer

    async def detokenize(self, call: Call) -> None:
        """Text of ids."""
        values = await self._read(call, self._detokenize_fields)
        if "tokens" not in values:
            raise ApiError("invalid_value", "`tokens` is required.", param="tokens")
        given = values["tokens"]
        is_batch = bool(given) and isinstance(given[0], list)
        lists = given if is_batch else [given]
        skip = values.get("skip_special_tokens", True)
        if sum(map(len, lists)) <= _INLINE_TOKENS:
            texts = self._decode(lists, skip)
        else:
            texts = await asyncio.to_thread(self._decode, lists, skip)
        await call.answer(200, encode({"text": texts if is_batch else texts[0]}))

    def _decode(self, lists: list[list[int]], skip: bool) -> list[str]:
        return [self._parts.tokenizer.decode(ids, skip_special_tokens=skip) for ids in lists]

    async def _read(self, call: Call, fields: dict[str, Field]) -> dict[str, Any]:
        body = await read_json(call, self._parts.settings)
        values = read_fields(fields, body, call)
        read_model(self._parts.engine.info, values)
        return values


def _read_texts(param: str, value: object, info: ServedModel, settings: HttpSettings) -> object:
    if isinstance(value, str):
        return value
    if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
        raise invalid(param, f"must be text or a list of texts, not {shown(value)}.")
    return read_prompts(param, value, info, settings)


def _read_ids(param: str, value: object, vocab_size: int, max_prompts: int) -> object:
    if not isinstance(value, list):
        raise invalid(param, f"must be a list of token ids or a list of these, not {shown(value)}.")
    if not value or not isinstance(value[0], list):
        return read_token_ids(param, value, vocab_size)
    if not all(isinstance(item, list) for item in value) or len(value) > max_prompts:
        raise invalid(param, f"must be a list of at most {max_prompts} lists of token ids.")
    return [read_token_ids(param, item, vocab_size) for item in value]
