"""Prompts to token ids, without holding up other requests."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from corymb.serve.asks import Room, too_long
from corymb.serve.engine import ServedModel
from corymb.serve.errors import Excess, invalid, shown
from corymb.serve.fields import read_token_ids
from corymb.serve.settings import HttpSettings
from corymb.serve.tokenizer import Tokenizer

_INLINE_CHARS = 16_384  # more is tokenised in a thread


@dataclass(frozen=True, slots=True)
class Prompt:
    """One prompt as ids. `text` is what the client sent, or None where it sent ids."""

    token_ids: list[int]
    text: str | None = None


class PromptEncoder:
    """Tokenises prompts; a text that cannot fit the context is refused before that work."""

    def __init__(self, tokenizer: Tokenizer, room: Room) -> None:
        self._tokenizer = tokenizer
        self._room = room

    async def encode(self, texts: Sequence[str], *, add_special_tokens: bool) -> list[list[int]]:
        """Ids of each text. Raises context_length_exceeded."""
        for text in texts:
            if self._tokenizer.fewest_tokens(text) > self._room.context_length:
                raise self._room.too_many_chars(len(text))
        if sum(map(len, texts)) <= _INLINE_CHARS:
            return self._encode(texts, add_special_tokens)
        return await asyncio.to_thread(self._encode, texts, add_special_tokens)

    def _encode(self, texts: Sequence[str], add_special_tokens: bool) -> list[list[int]]:
        return [self._tokenizer.encode(text, add_special_tokens=add_special_tokens) for text in texts]


def read_prompts(param: str, value: object, info: ServedModel, settings: HttpSettings) -> list[str | list[int]]:
    """A text, a list of ids, or a list of either, as a list of prompts."""
    if isinstance(value, str):
        return [value]
    if not isinstance(value, list) or not value:
        raise invalid(param, f"must be text, token ids, or a list of these that is not empty, not {shown(value)}.")
    if not isinstance(value[0], str | list):
        return [_read_ids(param, value, info)]
    if len(value) > settings.max_choices:
        raise invalid(param, f"must hold at most {settings.max_choices} prompts, not {len(value)}.")
    return [_read_one(param, item, info) for item in value]


def _read_one(param: str, item: Any, info: ServedModel) -> str | list[int]:
    if isinstance(item, str):
        return item
    if isinstance(item, list):
        return _read_ids(param, item, info)
    raise invalid(param, f"mixes prompts with {shown(item)}: each entry must be text or a list of token ids.")


def _read_ids(param: str, value: list[object], info: ServedModel) -> list[int]:
    if len(value) > info.context_length:
        raise too_long(Excess(info.context_length, len(value)), param)
    return read_token_ids(param, value, info.vocab_size)


async def encode_prompts(
    param: str, prompts: Sequence[str | list[int]], encoder: PromptEncoder, *, add_special_tokens: bool
) -> list[Prompt]:
    """Ids of every prompt, none of them empty."""
    texts = [prompt for prompt in prompts if isinstance(prompt, str)]
    encoded = iter(await encoder.encode(texts, add_special_tokens=add_special_tokens))
    done = [Prompt(next(encoded), p) if isinstance(p, str) else Prompt(p) for p in prompts]
    if not all(prompt.token_ids for prompt in done):
        raise invalid(param, "must not be empty: every prompt needs at least one token.")
    return done
