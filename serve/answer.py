"""How an endpoint spells what was generated, and what one choice has said so far."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol

import msgspec

from corymb.scheduler.messages import Finish, TextLogprob
from corymb.serve.errors import ApiError
from corymb.serve.events import Content, Counts, Event, Finished, Reasoning, ToolArguments, ToolOpened

encode = msgspec.json.encode
OPEN = b'"finish_reason":null'  # of a choice that goes on


class Answer(Protocol):
    """One endpoint's spelling of one request: a stream of `spell`, then `close` or `fail`; or else `whole`."""

    media_type: bytes  # of the stream

    def spell(self, index: int, events: Sequence[Event]) -> bytes:
        """What choice `index` gave in one piece; may be empty."""
        ...

    def close(self) -> bytes:
        """What ends the stream after every choice has finished."""
        ...

    def fail(self, error: ApiError) -> bytes:
        """What ends the stream early."""
        ...

    def whole(self, choices: Sequence["Choice"]) -> bytes:
        """The response that is no stream."""
        ...


@dataclass(slots=True)
class Part:
    """A run of events of one kind: some text, some reasoning, or one call."""

    kind: Literal["content", "reasoning", "call"]
    id: str = ""  # of a call
    name: str = ""
    pieces: list[str] = field(default_factory=list)
    logprobs: list[TextLogprob] = field(default_factory=list)  # of a text

    @property
    def text(self) -> str:
        """The text, or a call's arguments as JSON text."""
        return "".join(self.pieces)


class Choice:
    """What one choice has said so far."""

    __slots__ = ("_early", "embedding", "finish", "logprobs", "parts", "prompt_logprobs", "token_ids", "usage")

    def __init__(self) -> None:
        self.parts: list[Part] = []
        self.token_ids: list[int] = []
        self.logprobs: list[TextLogprob] = []  # of all tokens
        self.prompt_logprobs: list[TextLogprob] = []
        self.embedding: bytes | None = None
        self.finish: Finish | None = None
        self.usage: Counts | None = None
        self._early: list[TextLogprob] = []  # of the beginning of the first character

    def take(self, events: Iterable[Event]) -> None:
        """Adds what came next."""
        for event in events:
            match event:
                case Content():
                    self._take_content(event)
                case Reasoning(text):
                    self._early.clear()
                    self._part("reasoning").pieces.append(text)
                case ToolOpened(_, id, name):
                    self._early.clear()
                    self.parts.append(Part("call", id, name))
                case ToolArguments(_, fragment):
                    self.parts[-1].pieces.append(fragment)
                case Finished(finish, usage):
                    self.finish, self.usage = finish, usage

    def _take_content(self, event: Content) -> None:
        self.token_ids += event.token_ids
        self.logprobs += event.logprobs
        self.prompt_logprobs += event.prompt_logprobs
        self.embedding = event.embedding or self.embedding
        if event.text:
            part = self._part("content")
            part.pieces.append(event.text)
            part.logprobs += [*self._early, *event.logprobs]
            self._early.clear()
        elif not self.parts:
            self._early += event.logprobs
        elif self.parts[-1].kind == "content":
            self.parts[-1].logprobs += event.logprobs

    def _part(self, kind: Literal["content", "reasoning"]) -> Part:
        if not self.parts or self.parts[-1].kind != kind:
            self.parts.append(Part(kind))
        return self.parts[-1]

    @property
    def text(self) -> str:
        """The answer without its reasoning and calls."""
        return self._all("content")

    @property
    def reasoning(self) -> str:
        """What the model thought."""
        return self._all("reasoning")

    @property
    def calls(self) -> list[Part]:
        """The calls, in order."""
        return [part for part in self.parts if part.kind == "call"]

    def _all(self, kind: str) -> str:
        return "".join([piece for part in self.parts if part.kind == kind for piece in part.pieces])


class Head:
    """The members that every object of one response starts with."""

    def __init__(self, rid: str, kind: str, created_s: int, model: str) -> None:
        self.json = b'{"id":%b,"object":"%b","created":%d,"model":%b' % (
            encode(rid),
            kind.encode(),
            created_s,
            encode(model),
        )


def finish_json(finish: Finish, *, called: str = "") -> bytes:
    """`finish_reason` and `matched_stop` of a choice, as members of a JSON object. `called`: the reason if it made
    calls."""
    reason = called if called and finish.reason == "stop" else finish.reason
    return b'"finish_reason":%b,"matched_stop":%b' % (encode(reason), encode(finish.matched))


def joined(items: Sequence[bytes]) -> bytes:
    """A JSON array."""
    return b"[%b]" % b",".join(items)
