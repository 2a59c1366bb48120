"""What a format of reasoning or tool calls is made of: states, and the marks that lead from one to the next."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Literal

from corymb.serve.marks import Marks


class Sink(Enum):
    """What becomes of text in a state."""

    CONTENT = auto()
    REASONING = auto()
    TAKEN = auto()  # kept for the act at its end: a name, a key, a header
    VALUE = auto()  # one argument; its JSON depends on the type that the function declares


class Act(Enum):
    """What a mark means besides a change of state."""

    NONE = auto()
    BEGIN = auto()  # from here on it may be a call: if it turns out to be none, it was content
    NAME = auto()  # what was taken names a function: the call opens
    KEY = auto()  # what was taken names an argument
    VALUE = auto()  # the argument is complete
    CLOSE = auto()  # the call is complete
    PART = auto()  # a message is complete and another may follow
    BREAK = auto()  # reasoning seems to be broken off by a call


@dataclass(frozen=True, slots=True)
class Edge:
    """Where a mark leads."""

    to: str
    act: Act = Act.NONE
    keeps: bool = False  # the mark stays to be read in the next state
    pattern: re.Pattern[str] | None = None  # of what was taken: groups `name`, `id`, `key`, `raw`
    routes: tuple["Edge", ...] = ()  # the first whose pattern is found in what was taken is followed instead


@dataclass(frozen=True, slots=True)
class Text:
    """Everything up to the next mark goes to one sink."""

    sink: Sink
    edges: Mapping[str, Edge]
    letters: re.Pattern[str] | None = None  # of TAKEN: anything else and it is no call
    trims: bool = False  # of VALUE: one line break at either side is not part of it
    marks: Marks = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "marks", Marks(self.edges))


@dataclass(frozen=True, slots=True)
class Expect:
    """White space and then one of the marks; anything else takes the edge `otherwise`, or is no call."""

    edges: Mapping[str, Edge]
    otherwise: Edge | None = None
    marks: Marks = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "marks", Marks(self.edges))


@dataclass(frozen=True, slots=True)
class JsonCall:
    """An object that holds the function's name and its arguments, in any order."""

    to: str


@dataclass(frozen=True, slots=True)
class JsonArguments:
    """The arguments as one JSON value."""

    to: str


@dataclass(frozen=True, slots=True)
class PythonArguments:
    """Keyword arguments as Python writes them, up to the closing parenthesis."""

    to: str


State = Text | Expect | JsonCall | JsonArguments | PythonArguments


@dataclass(frozen=True, slots=True, eq=False)
class Syntax:
    """A format; each is itself and no other. The state `text` is where everything goes on that is no call."""

    states: Mapping[str, State]
    start: str = "text"
    bare: bool = False  # calls have no marks of their own: only functions that were offered are calls
    ids: Literal["call", "short"] = "call"  # short: nine letters and digits
    begins: tuple[str, ...] = ()  # the marks that a call can begin with

    def __post_init__(self) -> None:
        targets = {edge.to for state in self.states.values() for edge in edges(state)} | {"text", self.start}
        assert targets <= self.states.keys(), targets - self.states.keys()

    @property
    def marks(self) -> list[str]:
        """Every string that means something."""
        return [mark for state in self.states.values() if isinstance(state, Text | Expect) for mark in state.edges]


def edges(state: State) -> list[Edge]:
    """All ways out of a state."""
    if isinstance(state, JsonCall | JsonArguments | PythonArguments):
        return [Edge(state.to)]
    found = [route for edge in state.edges.values() for route in edge.routes or (edge,)]
    return [*found, state.otherwise] if isinstance(state, Expect) and state.otherwise is not None else found
