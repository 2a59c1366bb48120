"""How an endpoint spells what the engine generates."""

from collections.abc import Sequence
from typing import Protocol

import msgspec

from corymb.scheduler.messages import Finish, Text, TextLogprob

encode = msgspec.json.encode


class Answer(Protocol):
    """One endpoint's view of one request: either `events` and `closing`, or `add` and `body`."""

    def events(self, index: int, text: Text) -> bytes:
        """Server-sent events for a piece of choice `index`; may be empty."""
        ...

    def closing(self) -> bytes:
        """Server-sent events after every choice has finished, without [DONE]."""
        ...

    def add(self, index: int, text: Text) -> None:
        """Keeps a piece for `body`."""
        ...

    def body(self) -> bytes:
        """The whole response."""
        ...


def finish_json(finish: Finish) -> bytes:
    """`finish_reason` and `matched_stop` of a choice, as members of a JSON object."""
    return b'"finish_reason":%b,"matched_stop":%b' % (encode(finish.reason), encode(finish.matched))


class Choice:
    """What one choice has generated so far."""

    __slots__ = ("finish", "logprobs", "parts", "prompt_logprobs", "token_ids")

    def __init__(self) -> None:
        self.parts: list[str] = []
        self.token_ids: list[int] = []
        self.logprobs: list[TextLogprob] = []
        self.prompt_logprobs: list[TextLogprob] = []
        self.finish: Finish | None = None

    def add(self, text: Text) -> None:
        """Takes a piece."""
        self.parts.append(text.text)
        self.token_ids += text.token_ids
        self.logprobs += text.logprobs or ()
        self.prompt_logprobs += text.prompt_logprobs or ()
        self.finish = text.finish

    @property
    def text(self) -> str:
        """All of its text."""
        return "".join(self.parts)


class Head:
    """The members that every object of one response starts with."""

    def __init__(self, rid: str, kind: str, created_s: int, model: str) -> None:
        self.json = b'{"id":%b,"object":"%b","created":%d,"model":%b' % (
            encode(rid),
            kind.encode(),
            created_s,
            encode(model),
        )


def joined(items: Sequence[bytes]) -> bytes:
    """A JSON array."""
    return b"[%b]" % b",".join(items)
