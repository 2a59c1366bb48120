"""Cuts the events of a choice into blocks that open and close one after the other, for dialects made of such."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from corymb.scheduler.messages import TextLogprob
from corymb.serve.answer import Choice, Part
from corymb.serve.events import Content, Event, Finished, Reasoning, ToolArguments, ToolOpened


@dataclass(frozen=True, slots=True)
class Opened:
    """A block begins."""

    number: int
    part: Part


@dataclass(frozen=True, slots=True)
class Delta:
    """The open block grows."""

    number: int
    part: Part
    text: str
    logprobs: Sequence[TextLogprob] = ()


@dataclass(frozen=True, slots=True)
class Closed:
    """The open block is complete."""

    number: int
    part: Part


Change = Opened | Delta | Closed


class Blocks:
    """The blocks of one choice as they come: one at least, at most one of them open; each has text, or is a call, or is
    the only one: clients read the first without asking whether there is any.

    Blank text between calls is no block: what opens with blanks waits for more.
    """

    def __init__(self) -> None:
        self.closed: list[Part] = []
        self._open: Part | None = None
        self._waiting = Part("content")  # blanks that may become the beginning of a block
        self._called = False

    def read(self, events: Sequence[Event]) -> Iterator[Change]:
        """What changes with the next events."""
        for event in events:
            match event:
                case Content():
                    yield from self._read_content(event)
                case Reasoning(text):
                    yield from self._think(text)
                case ToolArguments(_, text):
                    yield from self._add(text)
                case Finished():
                    yield from self._finish()
                case _:
                    self._called, self._waiting = True, Part("content")
                    yield from self._begin(Part("call", event.id, event.name))

    def _read_content(self, event: Content) -> Iterator[Change]:
        if self._open is not None and self._open.kind == "content":
            yield from self._add(event.text, event.logprobs)
            return
        if event.text or self._is_first:
            self._waiting.pieces.append(event.text)
            self._waiting.logprobs += event.logprobs
        if event.text and not event.text.isspace():
            yield from self._begin_waiting()

    @property
    def _is_first(self) -> bool:
        return self._open is None and not self.closed

    def _begin_waiting(self) -> Iterator[Change]:
        waiting, self._waiting = self._waiting, Part("content")
        yield from self._begin(Part("content"))
        yield from self._add(waiting.text, waiting.logprobs)

    def _think(self, text: str) -> Iterator[Change]:
        if self._open is None or self._open.kind != "reasoning":
            if not self._waiting.text:
                self._waiting = Part("content")
            yield from self._begin(Part("reasoning"))
        yield from self._add(text)

    def _begin(self, part: Part) -> Iterator[Change]:
        yield from self._close()
        self._open = part
        yield Opened(len(self.closed), part)

    def _add(self, text: str, logprobs: Sequence[TextLogprob] = ()) -> Iterator[Change]:
        assert self._open is not None, "arguments come after their call has opened"
        if text or logprobs:
            self._open.pieces.append(text)
            self._open.logprobs += logprobs
            yield Delta(len(self.closed), self._open, text, logprobs)

    def _close(self) -> Iterator[Change]:
        if self._open is not None:
            part, self._open = self._open, None
            self.closed.append(part)
            yield Closed(len(self.closed) - 1, part)

    def _finish(self) -> Iterator[Change]:
        # An answer of nothing but blanks is still an answer.
        if self._waiting.text and not self._called:
            yield from self._begin_waiting()
        elif self._is_first:
            yield from self._begin(Part("content"))
        yield from self._close()


def blocks_of(choice: Choice) -> list[Part]:
    """The blocks of a whole choice: those that a stream of it has."""
    assert choice.finish is not None
    assert choice.usage is not None
    blocks = Blocks()
    events = [event for part in choice.parts for event in _events(part)]
    list(blocks.read([*events, Finished(choice.finish, choice.usage)]))
    return blocks.closed


def _events(part: Part) -> list[Event]:
    if part.kind == "content":
        return [Content(part.text, part.logprobs)]
    if part.kind == "reasoning":
        return [Reasoning(part.text)]
    return [ToolOpened(0, part.id, part.name), ToolArguments(0, part.text)]
