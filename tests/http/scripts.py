"""Generations by script: what choices say, without an engine or a parser."""

from collections.abc import Sequence

from hypothesis import strategies as st

from corymb.scheduler.messages import Finish, Text
from corymb.serve.answer import Answer, Choice
from corymb.serve.events import Content, Counts, Event, Finished, Reasoning, ToolArguments, ToolOpened
from corymb.serve.usage import Usage

Script = list[list[Event]]  # by piece
STOP = Finish("stop", 257)
COUNTS = Counts(prompt=7, cached=3, output=9, reasoning=2)


def usage() -> Usage:
    counted = Usage([COUNTS.prompt], [1])
    counted.add(0, Text("r", "", [], 7, COUNTS.cached, COUNTS.output), COUNTS.reasoning)
    return counted


def ended(*events: Event, finish: Finish = STOP, size: int = 1, at_once: bool = False) -> Script:
    """The events in pieces of `size`, then the finish; or the finish `at_once` with the last piece."""
    pieces = [list(events[start : start + size]) for start in range(0, len(events), size)]
    if at_once and pieces:
        return [*pieces[:-1], [*pieces[-1], Finished(finish, COUNTS)]]
    return [*pieces, [Content(""), Finished(finish, COUNTS)]]


def call(index: int, name: str, *fragments: str) -> list[Event]:
    return [ToolOpened(index, f"call_{index}", name), *(ToolArguments(index, fragment) for fragment in fragments)]


def streamed(answer: Answer, script: Script) -> bytes:
    return b"".join(answer.spell(0, events) for events in script) + answer.close()


def whole(answer: Answer, script: Script) -> bytes:
    choice = Choice()
    for events in script:
        choice.take(events)
    return answer.whole([choice])


EVERYTHING = ended(
    Reasoning("Let me "),
    Reasoning("think."),
    Content("\n\n"),
    Content("I look"),
    Content(" it up."),
    *call(0, "look", '{"city": ', '"São Paulo"}'),
    Content("\n"),
    *call(1, "wait", "{}"),
    Content("\n"),
    Content("Done. 😀"),
)

_texts = st.text(st.sampled_from("a\n é😀"), max_size=4)


@st.composite
def scripts(draw: st.DrawFn) -> Script:
    """Any order of text, reasoning and calls, cut anywhere."""
    events: list[Event] = []
    calls = 0
    for kind in draw(st.lists(st.sampled_from(["content", "reasoning", "call"]), max_size=7)):
        if kind == "call":
            events += call(calls, "f", *draw(st.lists(st.sampled_from(['{"a":1', "}", "", "x"]), max_size=3)))
            calls += 1
        else:
            event = Content if kind == "content" else Reasoning
            events += [
                event(text) for text in draw(st.lists(_texts, min_size=1, max_size=3)) if text or kind == "content"
            ]
    finish = draw(st.sampled_from([STOP, Finish("length"), Finish("stop", "x")]))
    return ended(*events, finish=finish, size=draw(st.integers(1, 4)), at_once=draw(st.booleans()))


def said(script: Sequence[Sequence[Event]]) -> str:
    return "".join(event.text for events in script for event in events if isinstance(event, Content))
