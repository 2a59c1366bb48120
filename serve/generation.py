"""One HTTP request's way through the engine: what it asks, and the reading of what comes back."""

from collections.abc import Callable, Sequence
from typing import Protocol

from msgspec.structs import replace

from corymb.scheduler.messages import Text
from corymb.serve.asks import Ask
from corymb.serve.events import Content, Event, Finished, Reasoning, ToolArguments, ToolOpened
from corymb.serve.usage import Usage


class Parser(Protocol):
    """Tells reasoning, calls and content apart, however the text is cut."""

    def feed(self, text: str) -> list[Event]:
        """The events that are certain after this much more text."""
        ...

    def end(self) -> list[Event]:
        """What was held back."""
        ...


class Generation:
    """Every choice of one HTTP request, with its parser, and the token counts of all."""

    def __init__(
        self,
        asks: Sequence[Ask],
        *,
        make_parser: Callable[[], Parser] | None = None,
        reasoning_end_ids: Sequence[int] = (),
    ) -> None:
        """Without `make_parser` all text is content. `reasoning_end_ids`: tokens of the mark that ends reasoning."""
        self.asks = asks
        self.usage = Usage([len(ask.token_ids) for ask in asks], [ask.n for ask in asks])
        end_id = reasoning_end_ids[0] if len(reasoning_end_ids) == 1 else None
        self._readings = [
            Reading(None if make_parser is None else make_parser(), end_id) for ask in asks for _ in range(ask.n)
        ]

    @property
    def num_choices(self) -> int:
        """Over all prompts."""
        return len(self._readings)

    def read(self, index: int, text: Text) -> list[Event]:
        """The events of a piece of choice `index`; its tokens are counted."""
        reading = self._readings[index]
        events = reading.read(text)
        self.usage.add(index, text, reading.num_reasoning)
        if text.finish is not None:
            events.append(Finished(text.finish, self.usage.counts(index)))
        return events


class Reading:
    """Reads one choice. Each piece gives exactly one Content that carries the piece's tokens and logprobs."""

    __slots__ = ("_answering", "_end_id", "_num_read", "_parser", "num_reasoning")

    def __init__(self, parser: Parser | None, end_id: int | None = None) -> None:
        """`end_id`: the token that ends reasoning, where it is one: it tells where inside a piece of several."""
        self.num_reasoning = 0  # tokens up to and including the mark that ends reasoning
        self._end_id = end_id
        self._num_read = 0
        self._parser = parser
        self._answering = parser is None

    def read(self, text: Text) -> list[Event]:
        """The events of the next piece."""
        return [_content(text)] if self._parser is None else self._parsed(self._parser, text)

    def _parsed(self, parser: Parser, text: Text) -> list[Event]:
        said = parser.feed(text.text)
        if text.finish is not None:
            said += parser.end()
        if not self._answering:
            self._count_reasoning(said, text.token_ids)
        for position, event in enumerate(said):
            if isinstance(event, Content):
                said[position] = replace(_content(text), text=event.text)
                return said
        return [replace(_content(text), text=""), *said]

    def _count_reasoning(self, said: list[Event], token_ids: Sequence[int]) -> None:
        thinks = any(isinstance(event, Reasoning) for event in said)
        self._answering = any(_is_answer(event) for event in said)
        if not self._answering:
            self._num_read += len(token_ids)
        elif self._end_id is not None and self._end_id in token_ids:
            self._num_read += token_ids.index(self._end_id) + 1
        elif thinks:
            self._num_read += len(token_ids)  # where in the piece it ended, nobody can tell
        if thinks or self.num_reasoning:
            self.num_reasoning = self._num_read


def _content(text: Text) -> Content:
    return Content(text.text, text.logprobs or (), text.token_ids, text.prompt_logprobs or (), text.embedding)


def _is_answer(event: Event) -> bool:
    return isinstance(event, ToolOpened | ToolArguments) or (isinstance(event, Content) and bool(event.text))
