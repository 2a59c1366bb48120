"""Answers of /generate: text, output ids and meta_info."""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from corymb.scheduler.messages import Finish, Speculated, TextLogprob
from corymb.serve import logprobs as spell
from corymb.serve import sse
from corymb.serve.answer import Choice, encode, joined
from corymb.serve.asks import Ask
from corymb.serve.errors import ApiError
from corymb.serve.events import Content, Counts, Event, Finished
from corymb.serve.generation import Generation


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
        self._finish: Finish | None = None
        self._text = JsonParts(b'"', b'"', b"")
        self._ids = JsonParts(b"[", b"]", b",")
        self._logprobs: dict[str, JsonParts] = {}
        if ask.logprobs is not None:
            names = ["token_logprobs"]
            names += ["top_logprobs"] if ask.logprobs.top else []
            names += ["token_ids_logprobs"] if ask.logprobs.token_ids else []
            self._logprobs = {
                f"{side}_{name}": JsonParts(b"[", b"]", b",") for side in ("input", "output") for name in names
            }

    def add(self, event: Event) -> None:
        """Takes what came next."""
        if isinstance(event, Finished):
            self._finish = event.finish
            return
        assert isinstance(event, Content), "native answers are not parsed"
        self._text.add(encode(event.text)[1:-1])
        self._ids.add(encode(event.token_ids)[1:-1])
        self._add_logprobs("input", event.prompt_logprobs)
        self._add_logprobs("output", event.logprobs)

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

    def json(self, counts: Counts, *, place: bytes = b"") -> bytes:
        """The object for this choice. `place`: a member that tells which one it is in a stream of several."""
        meta = [encode(self._meta(counts))[1:-1]]
        meta += [b'"%b":%b' % (name.encode(), parts.json()) for name, parts in self._logprobs.items()]
        parts = (self._text.json(), self._ids.json(), b",".join(meta), place)
        return b'{"text":%b,"output_ids":%b,"meta_info":{%b}%b}' % parts

    def told(self) -> None:
        """An incremental stream told everything so far."""
        for parts in (self._text, self._ids, *self._logprobs.values()):
            parts.clear()

    def _meta(self, counts: Counts) -> dict[str, Any]:
        meta: dict[str, Any] = {
            "id": self._rid,
            "finish_reason": None if self._finish is None else self._reason(self._finish),
            "prompt_tokens": counts.prompt,
            "completion_tokens": counts.output,
            "cached_tokens": counts.cached,
        }
        if self._finish is not None:
            meta["e2e_latency"] = time.monotonic() - self._ask.arrived_s
        if counts.speculated is not None:
            meta.update(_speculation(counts.speculated))
        return meta

    def _reason(self, finish: Finish) -> dict[str, Any]:
        if finish.reason == "stop":
            return {"type": "stop", "matched": finish.matched}
        if finish.reason == "length":
            return {"type": "length", "length": self._ask.sampling.max_new_tokens}
        return {"type": finish.reason, "message": finish.message, "status_code": finish.status}


def _speculation(counts: Speculated) -> dict[str, Any]:
    """What a choice's drafts came to, under SGLang's names."""
    return {
        "spec_verify_ct": counts.num_steps,
        "spec_num_proposed_drafts": counts.num_drafts,
        "spec_num_correct_drafts": counts.num_accepted,
        "spec_accept_length": 1 + counts.num_accepted / counts.num_steps,
        "spec_accept_rate": counts.num_accepted / counts.num_drafts,
    }


class NativeAnswer:
    """Spells the answers of all choices."""

    media_type = sse.MEDIA_TYPE

    def __init__(self, generation: Generation, view: NativeView) -> None:
        self._view = view
        self._usage = generation.usage
        self._choices = [NativeChoice(rid, ask, view) for ask in generation.asks for rid in ask.choice_rids()]

    def spell(self, index: int, events: Sequence[Event]) -> bytes:
        """Everything this choice has given so far, or what is new of it."""
        choice = self._choices[index]
        for event in events:
            choice.add(event)
        place = b',"index":%d' % index if self._view.is_list else b""
        payload = choice.json(self._usage.counts(index), place=place)
        if self._view.incremental:
            choice.told()
        return sse.event(payload)

    def close(self) -> bytes:
        """The last event of each choice said that it finished."""
        return sse.DONE

    def fail(self, error: ApiError) -> bytes:
        """The error as an event."""
        return sse.failure(error)

    def whole(self, choices: Sequence[Choice]) -> bytes:
        """One object, or a list in the order of choices."""
        objects = [self._whole(index, choice) for index, choice in enumerate(choices)]
        return joined(objects) if self._view.is_list else objects[0]

    def _whole(self, index: int, choice: Choice) -> bytes:
        assert choice.finish is not None
        assert choice.usage is not None
        told = self._choices[index]
        told.add(Content(choice.text, choice.logprobs, choice.token_ids, choice.prompt_logprobs))
        told.add(Finished(choice.finish, choice.usage))
        return told.json(choice.usage)
