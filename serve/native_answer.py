"""Answers of /generate: text, output ids and meta_info."""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from corymb.scheduler.messages import Finish, Text, TextLogprob
from corymb.serve import logprobs as spell
from corymb.serve.answer import encode, joined
from corymb.serve.asks import Ask
from corymb.serve.sse import event


@dataclass(frozen=True, slots=True, kw_only=True)
class NativeView:
    """What the client wants to see."""

    is_list: bool  # answer with a list, as several were asked for
    incremental: bool  # stream what is new instead of everything so far
    text_in_logprobs: bool


class JsonParts:
    """A JSON string or array that grows without being encoded again."""

    def __init__(self, opening: bytes, closing: bytes, separator: bytes) -> None:
        self._opening, self._closing, self._separator = opening, closing, separator
        self._inside = bytearray()

    def add(self, inside: bytes) -> None:
        """`inside` is encoded and has no brackets or quotes around it."""
        if inside:
            if self._inside:
                self._inside += self._separator
            self._inside += inside

    def json(self) -> bytes:
        """All of it."""
        return b"".join((self._opening, self._inside, self._closing))

    def clear(self) -> None:
        """Forgets what was told."""
        self._inside.clear()


class NativeChoice:
    """What one choice has given so far, already encoded."""

    def __init__(self, rid: str, ask: Ask, view: NativeView) -> None:
        self._rid = rid
        self._ask = ask
        self._view = view
        self._text = JsonParts(b'"', b'"', b"")
        self._ids = JsonParts(b"[", b"]", b",")
        self._logprobs: dict[str, JsonParts] = {}
        self._last: Text | None = None
        if ask.logprobs is not None:
            names = ["token_logprobs"]
            names += ["top_logprobs"] if ask.logprobs.top else []
            names += ["token_ids_logprobs"] if ask.logprobs.token_ids else []
            self._logprobs = {
                f"{side}_{name}": JsonParts(b"[", b"]", b",") for side in ("input", "output") for name in names
            }

    def add(self, text: Text) -> None:
        """Takes a piece."""
        self._text.add(encode(text.text)[1:-1])
        self._ids.add(encode(text.token_ids)[1:-1])
        self._add_logprobs("input", text.prompt_logprobs or ())
        self._add_logprobs("output", text.logprobs or ())
        self._last = text

    def _add_logprobs(self, side: str, entries: Sequence[TextLogprob]) -> None:
        if not entries or not self._logprobs:
            return
        spellings = {
            "token_logprobs": spell.native,
            "top_logprobs": spell.native_top,
            "token_ids_logprobs": spell.native_chosen,
        }
        for name, spelled in spellings.items():
            parts = self._logprobs.get(f"{side}_{name}")
            if parts is not None:
                parts.add(encode(spelled(entries, with_text=self._view.text_in_logprobs))[1:-1])

    def json(self, index: int | None) -> bytes:
        """The object for this choice. `index` is told in streams of several choices."""
        assert self._last is not None
        meta = [encode(self._meta(self._last))[1:-1]]
        meta += [b'"%b":%b' % (name.encode(), parts.json()) for name, parts in self._logprobs.items()]
        place = b"" if index is None else b',"index":%d' % index
        parts = (self._text.json(), self._ids.json(), b",".join(meta), place)
        return b'{"text":%b,"output_ids":%b,"meta_info":{%b}%b}' % parts

    def told(self) -> None:
        """An incremental stream told everything so far."""
        for parts in (self._text, self._ids, *self._logprobs.values()):
            parts.clear()

    def _meta(self, last: Text) -> dict[str, Any]:
        meta: dict[str, Any] = {
            "id": self._rid,
            "finish_reason": None if last.finish is None else self._finish(last.finish),
            "prompt_tokens": len(self._ask.token_ids),
            "completion_tokens": last.num_output_tokens,
            "cached_tokens": last.num_cached_tokens,
        }
        if last.finish is not None:
            meta["e2e_latency"] = time.monotonic() - self._ask.arrived_s
        return meta

    def _finish(self, finish: Finish) -> dict[str, Any]:
        if finish.reason == "stop":
            return {"type": "stop", "matched": finish.matched}
        if finish.reason == "length":
            return {"type": "length", "length": self._ask.sampling.max_new_tokens}
        return {"type": finish.reason, "message": finish.message, "status_code": finish.status}


class NativeAnswer:
    """Spells the answers of all choices."""

    def __init__(self, asks: Sequence[Ask], view: NativeView) -> None:
        self._view = view
        self._choices = [NativeChoice(rid, ask, view) for ask in asks for rid in ask.choice_rids()]

    def events(self, index: int, text: Text) -> bytes:
        """Everything this choice has given so far, or what is new of it."""
        choice = self._choices[index]
        choice.add(text)
        payload = choice.json(index if self._view.is_list else None)
        if self._view.incremental:
            choice.told()
        return event(payload)

    def closing(self) -> bytes:
        """Nothing: the last event of each choice said that it finished."""
        return b""

    def add(self, index: int, text: Text) -> None:
        """Keeps a piece for the body."""
        self._choices[index].add(text)

    def body(self) -> bytes:
        """One object, or a list in the order of choices."""
        objects = [choice.json(None) for choice in self._choices]
        return joined(objects) if self._view.is_list else objects[0]
