"""Reading texts into events: what carries the tokens, and which of them are reasoning."""

import pytest

from corymb.scheduler.messages import Finish, Sampling, Text, TextOptions
from corymb.serve.answer import Choice
from corymb.serve.asks import Ask, Routing
from corymb.serve.events import Content, Event, Finished, Reasoning, ToolArguments, ToolOpened
from corymb.serve.generation import Generation

OPEN, CLOSE = "(", ")"


class Brackets:
    """Text in brackets is reasoning; `!` begins a call; `?` is held back until the end."""

    def __init__(self) -> None:
        self._inside = False
        self._held = ""

    def feed(self, text: str) -> list[Event]:
        return [event for char in text for event in self._read(char)]

    def _read(self, char: str) -> list[Event]:
        if char in (OPEN, CLOSE):
            self._inside = char == OPEN
            return []
        if char == "?":
            self._held += char
            return []
        if char == "!":
            return [ToolOpened(0, "call-0", "f"), ToolArguments(0, "{}")]
        return [Reasoning(char) if self._inside else Content(char)]

    def end(self) -> list[Event]:
        return [Content(self._held)] if self._held else []


def generation(n: int = 1, parser=Brackets) -> Generation:
    ask = Ask(
        rid="r",
        token_ids=[1, 2, 3],
        sampling=Sampling(max_new_tokens=100),
        text=TextOptions(),
        logprobs=None,
        n=n,
        routing=Routing(),
    )
    return Generation([ask], make_parser=parser, reasoning_end_ids=[ord(CLOSE)])


def pieces(text: str, size: int) -> list[Text]:
    """A token a character, so many in a piece."""
    made = []
    for start in range(0, len(text), size):
        part = text[start : start + size]
        end = start + len(part)
        finish = Finish("stop") if end == len(text) else None
        made.append(Text("r", part, [ord(char) for char in part], 3, 2, end, finish))
    return made


def read(text: str, size: int = 1) -> list[list[Event]]:
    reading = generation()
    return [reading.read(0, piece) for piece in pieces(text, size)]


@pytest.mark.parametrize("text", ["(ab)cd", "ab", "()", "(a", "(a)!", "a?", "??", "(ab)?c"])
@pytest.mark.parametrize("size", [1, 2, 3, 100])
def test_each_piece_has_one_content_that_carries_its_tokens(text, size) -> None:
    for piece, events in zip(pieces(text, size), read(text, size), strict=True):
        carriers = [event for event in events if isinstance(event, Content) and event.token_ids]
        assert [list(event.token_ids) for event in carriers] == [piece.token_ids]
        assert any(isinstance(event, Finished) for event in events) == (piece.finish is not None)


@pytest.mark.parametrize("size", [1, 2, 3, 100])
def test_what_a_choice_said_does_not_depend_on_the_pieces(size) -> None:
    choice = Choice()
    for events in read("(ab)cd!x?", size):
        choice.take(events)
    assert (choice.reasoning, choice.text) == ("ab", "cdx?")
    assert [(call.id, call.name, call.text) for call in choice.calls] == [("call-0", "f", "{}")]
    assert [part.kind for part in choice.parts] == ["reasoning", "content", "call", "content"]
    assert choice.token_ids == [ord(char) for char in "(ab)cd!x?"]


REASONED = [("(ab)cd", 4), ("abcd", 0), ("(ab", 3), ("(ab)", 4), ("(ab)!", 4), ("()x", 0), ("?(a)b", 4), ("", 0)]


@pytest.mark.parametrize("size", [1, 2, 3, 100])
@pytest.mark.parametrize(("text", "count"), REASONED)
def test_reasoning_counts_up_to_its_closing_mark(text, count, size) -> None:
    reading = generation()
    for piece in pieces(text, size):
        reading.read(0, piece)
    assert reading.usage.num_reasoning == count


def test_counts_of_several_choices_count_the_prompt_once() -> None:
    reading = generation(n=2)
    for index in (0, 1):
        for piece in pieces("(a)b", 1):
            last = reading.read(index, piece)
    usage = reading.usage
    assert (usage.num_prompt, usage.num_cached, usage.num_output, usage.num_reasoning) == (3, 2, 8, 6)
    assert isinstance(last[-1], Finished)
    assert (last[-1].usage.prompt, last[-1].usage.cached, last[-1].usage.output) == (3, 2, 4)
    assert last[-1].usage.reasoning == 3


def test_without_a_parser_all_text_is_content() -> None:
    reading = generation(parser=None)
    choice = Choice()
    for piece in pieces("(ab)c!", 2):
        choice.take(reading.read(0, piece))
    assert (choice.text, choice.reasoning, choice.calls) == ("(ab)c!", "", [])
