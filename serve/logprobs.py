"""Log-probabilities in the three shapes that clients expect."""

from collections.abc import Sequence
from typing import Any

from corymb.scheduler.messages import TextLogprob

_LOWEST = -9999.0  # stands for minus infinity, which JSON cannot hold


def chat(entries: Sequence[TextLogprob]) -> dict[str, Any]:
    """`logprobs` of a chat choice."""
    return {"content": entries_of(entries), "refusal": None}


def entries_of(entries: Sequence[TextLogprob]) -> list[dict[str, Any]]:
    """An object a token, with its alternatives."""
    return [{**_token(entry), "top_logprobs": [_token(other) for other in entry.top]} for entry in entries]


def _token(entry: TextLogprob) -> dict[str, Any]:
    return {"token": entry.token, "logprob": _finite(entry.logprob), "bytes": entry.token_bytes}


class CompletionLogprobs:
    """`logprobs` of a completion choice; counts characters across calls for `text_offset`."""

    def __init__(self, *, start: int = 0) -> None:
        self._num_chars = start  # characters that start before the next token

    def json(self, entries: Sequence[TextLogprob], silent: Sequence[bool]) -> dict[str, Any]:
        """`silent[i]`: entry i gives no text, so it moves no offset."""
        offsets = [self._offset(entry, is_silent) for entry, is_silent in zip(entries, silent, strict=True)]
        return {
            "text_offset": offsets,
            "token_logprobs": [_finite(entry.logprob) for entry in entries],
            "tokens": [spelled(entry) for entry in entries],
            "top_logprobs": [_top(entry) for entry in entries],
        }

    def _offset(self, entry: TextLogprob, is_silent: bool) -> int:
        starts = [byte & 0xC0 != 0x80 for byte in entry.token_bytes]
        inside = bool(starts) and not starts[0]  # the token begins inside a character
        offset = self._num_chars - inside
        if not is_silent:
            self._num_chars += sum(starts)
        return max(offset, 0)


def spelled(entry: TextLogprob) -> str:
    """A token as text; one that is no whole number of characters as `bytes:\\xe2\\x80`, as OpenAI spells it."""
    raw = bytes(entry.token_bytes)
    try:
        raw.decode()
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in raw)
    return entry.token


def _top(entry: TextLogprob) -> dict[str, float | None] | None:
    if entry.logprob is None:
        return None  # nothing comes before a prompt's first token
    return {spelled(item): _finite(item.logprob) for item in (entry, *entry.top)}


def native(entries: Sequence[TextLogprob], *, with_text: bool) -> list[list[Any]]:
    """`[logprob, token id, text or null]` a token."""
    return [_native(entry, with_text) for entry in entries]


def native_top(entries: Sequence[TextLogprob], *, with_text: bool) -> list[list[list[Any]] | None]:
    """The alternatives at each position."""
    return [[_native(item, with_text) for item in entry.top] or None for entry in entries]


def native_chosen(entries: Sequence[TextLogprob], *, with_text: bool) -> list[list[list[Any]] | None]:
    """The logprobs of the ids a client chose, at each position."""
    return [[_native(item, with_text) for item in entry.chosen] or None for entry in entries]


def _native(entry: TextLogprob, with_text: bool) -> list[Any]:
    return [_finite(entry.logprob), entry.token_id, entry.token if with_text else None]


def _finite(value: float | None) -> float | None:
    return None if value is None else max(value, _LOWEST)
