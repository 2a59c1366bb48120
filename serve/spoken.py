"""Puts together what was said: events in order, without the white space that only separates their kinds."""

import secrets
import string
from typing import Literal

from corymb.serve.events import Content, Event, Reasoning, ToolArguments, ToolOpened

SPACE = " \t\r\n"
_BETWEEN_PARTS = "\n\n"
_LETTERS = string.ascii_letters + string.digits


class Spoken:
    """Owns the events that were not handed out yet.

    White space before a call, behind the last call and around reasoning is left out, and so held back until it is
    known what follows. Otherwise content is what the model wrote.
    """

    def __init__(
        self, *, separates: bool, streams: bool, ids: Literal["call", "short"], keeps_space: bool = False
    ) -> None:
        self._separates = separates  # else reasoning is content
        self._keeps_space = keeps_space  # behind reasoning
        self._streams = streams  # else reasoning is handed out when it is over
        self._ids = ids
        self._events: list[Event] = []
        self._spaces: list[str] = []  # held back, in pieces: a long run of them must not be copied again and again
        self._kind: type[Content] | type[Reasoning] | None = None  # of the last text
        self._skips = False  # leading white space of what comes next
        self._after_call = False  # nothing was said since a call
        self._parts: set[type[Content] | type[Reasoning]] = set()  # kinds whose next text is another message
        self.num_calls = 0

    def content(self, text: str) -> None:
        """A piece of the answer."""
        self._say(Content, text)

    def reasoning(self, text: str) -> None:
        """A piece of reasoning."""
        self._say(Reasoning if self._separates else Content, text)

    def part(self) -> None:
        """A message ended: more text of its kind is another paragraph."""
        if self._kind is not None:
            self._parts.add(self._kind)

    def open(self, name: str, call_id: str | None) -> None:
        """A call begins."""
        self._spaces.clear()
        self._skips = self._kind is not Content
        self._kind = None if self._kind is Reasoning else self._kind
        self._after_call = True
        self._events.append(ToolOpened(self.num_calls, call_id or self._new_id(), name))
        self.num_calls += 1

    def arguments(self, fragment: str) -> None:
        """A piece of the arguments of the call that opened last."""
        if fragment:
            self._events.append(ToolArguments(self.num_calls - 1, fragment))

    def end(self) -> None:
        """Nothing more comes: white space at the end belongs to the answer, unless a call or reasoning went before."""
        if self._spaces and self._kind is Content and not self._after_call:
            self._events.append(Content("".join(self._spaces)))
        self._spaces.clear()
        self._kind = None

    def take(self) -> list[Event]:
        """The events since the last time; neighbours of one kind are one event."""
        if self._kind is Reasoning and not self._streams:
            return []
        events, self._events = self._events, []
        return _joined(events)

    def _say(self, kind: type[Content] | type[Reasoning], text: str) -> None:
        if text and kind is not self._kind and Reasoning in (kind, self._kind):
            self._spaces.clear()
            self._skips = kind is Reasoning or not self._keeps_space
        if self._skips:
            text = text.lstrip(SPACE)
        if not text:
            return
        self._kind = kind
        self._skips = False
        kept = text.rstrip(SPACE)
        if kept:
            between = _BETWEEN_PARTS if kind in self._parts else "".join(self._spaces)
            self._parts.discard(kind)
            self._spaces.clear()
            self._after_call = False
            self._events.append(kind(between + kept))
        if len(kept) < len(text):
            self._spaces.append(text[len(kept) :])

    def _new_id(self) -> str:
        if self._ids == "short":
            return "".join(secrets.choice(_LETTERS) for _ in range(9))
        return f"call_{secrets.token_hex(12)}"


def _joined(events: list[Event]) -> list[Event]:
    """Joins in one pass: a piece may hold thousands of fragments."""
    runs: list[list[Event]] = []
    for event in events:
        if runs and _continues(runs[-1][0], event):
            runs[-1].append(event)
        else:
            runs.append([event])
    return [_join(run) for run in runs]


def _continues(first: Event, event: Event) -> bool:
    if isinstance(first, ToolArguments) and isinstance(event, ToolArguments):
        return first.index == event.index
    return type(first) is type(event) and isinstance(first, Content | Reasoning)


def _join(run: list[Event]) -> Event:
    first = run[0]
    if isinstance(first, ToolArguments):
        return ToolArguments(first.index, "".join(e.fragment for e in run if isinstance(e, ToolArguments)))
    if isinstance(first, Content | Reasoning):
        return type(first)("".join(e.text for e in run if isinstance(e, Content | Reasoning)))
    return first
