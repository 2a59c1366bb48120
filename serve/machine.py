"""Reads a text that arrives in pieces by a syntax: the one incremental parser behind all formats.

Every character is read once, whatever the text: where a call turns out to be none, its text so far becomes content and
reading goes on behind it. What is held back is at most the beginning of a mark, and a call until its function is known.
"""

import json
from collections.abc import Callable, Mapping
from typing import Any, Protocol

from corymb.serve import syntax as of
from corymb.serve.json_reading import MAX_NAME_CHARS, JsonCall, JsonValue, NotACall, skip_space
from corymb.serve.python_reading import PythonArguments
from corymb.serve.syntax import Act, Edge, Expect, Sink, State, Syntax, Text
from corymb.serve.values import as_json, escaped, only_text, properties


class Listener(Protocol):
    """Who hears what a machine reads: `spoken.Spoken`, or a machine behind another."""

    def content(self, text: str) -> None: ...
    def reasoning(self, text: str) -> None: ...
    def part(self) -> None: ...
    def open(self, name: str, call_id: str | None) -> None: ...
    def arguments(self, fragment: str) -> None: ...


Functions = Mapping[str, Any]  # what may be called: the schema of each function's parameters, by name


class Machine:
    """Owns how far a text has been read."""

    def __init__(
        self,
        syntax: Syntax,
        listener: Listener,
        functions: Functions,
        *,
        start: str | None = None,
        broken: Callable[[], None] = lambda: None,
    ) -> None:
        """`broken`: told where a call seems to break reasoning off."""
        self._broken = broken
        self._syntax = syntax
        self._listener = listener
        self._functions = functions
        self._text, self._at = "", 0  # [0, _at) is read
        self._raw: list[str] | None = None  # what is content if it turns out to be no call
        self._taken: list[str] = []
        self._num_taken = 0
        self._call: _Call | None = None
        self._reader: JsonCall | JsonValue | PythonArguments | None = None
        self.state_name: str
        self._state: State
        self.enter(start or syntax.start)
        if not isinstance(self._state, Text):
            self._raw = []

    def feed(self, text: str) -> None:
        """Reads a piece."""
        self._text, self._at = self._text[self._at :] + text, 0
        while self._step():
            pass

    def end(self) -> None:
        """Nothing more comes: what was held back is what it looks like."""
        rest = self._text[self._at :]
        self._text, self._at = "", 0
        if isinstance(self._reader, JsonValue):
            self._reader.end()
        if self._raw is not None:
            self._listener.content("".join(self._raw) + rest)
        elif isinstance(self._state, Text):
            self._give(self._state, rest)
        elif isinstance(self._state, Expect):
            self._close()  # what is left is the beginning of a mark that a limit or a stop string cut
        elif self._reader is not None and self._reader.done:
            self._close()

    def _step(self) -> bool:
        """Reads as far as one state goes; whether there is more to read."""
        state = self._state
        try:
            if isinstance(state, Text):
                return self._read_text(state)
            if isinstance(state, Expect):
                return self._read_expected(state)
            return self._read_with(self._reader, state.to)
        except NotACall as refusal:
            self._advance(self._at if refusal.at is None else refusal.at)
            self._fail()
            return True

    def _read_text(self, state: Text) -> bool:
        mark = state.marks.find(self._text, self._at)
        end = len(self._text) - state.marks.num_held(self._text, self._at) if mark is None else mark.start
        if state.sink is Sink.TAKEN:
            self._check_taken(state, end)
        self._give(state, self._advance(end))
        if mark is not None:
            self._follow(state.edges[mark.string], mark.end)
        return mark is not None

    def _read_expected(self, state: Expect) -> bool:
        self._advance(skip_space(self._text, self._at))
        mark = state.marks.at(self._text, self._at)
        if mark is not None:
            self._follow(state.edges[mark.string], mark.end)
            return True
        if state.marks.begins(self._text, self._at):
            return False
        if state.otherwise is None:
            raise NotACall(self._at)
        self._follow(state.otherwise, self._at)
        return True

    def _read_with(self, reader: JsonCall | JsonValue | PythonArguments | None, to: str) -> bool:
        assert reader is not None
        self._advance(reader.read(self._text, self._at))
        if reader.done:
            self.enter(to)
        return reader.done

    def _advance(self, end: int) -> str:
        piece = self._text[self._at : end]
        self._at = end
        if self._raw is not None:
            self._raw.append(piece)
        return piece

    def _give(self, state: Text, piece: str) -> None:
        """Text on its way to a sink."""
        if not piece:
            return
        if state.sink is Sink.CONTENT:
            self._listener.content(piece)
        elif state.sink is Sink.REASONING:
            self._listener.reasoning(piece)
        elif state.sink is Sink.VALUE:
            assert self._call is not None
            self._call.value(piece, trims=state.trims)
        else:
            self._taken.append(piece)
            self._num_taken += len(piece)

    def _check_taken(self, state: Text, end: int) -> None:
        """Refuses names that are too long or have letters that no name has."""
        limit = self._at + MAX_NAME_CHARS - self._num_taken
        letters = state.letters.match(self._text, self._at, end) if state.letters is not None else None
        right = min(limit, end if letters is None else letters.end())
        if right < end:
            raise NotACall(right)

    def _follow(self, edge: Edge, end: int) -> None:
        """Takes an edge whose mark ends at `end`."""
        taken = "".join(self._taken)
        for route in edge.routes:
            assert route.pattern is not None
            if route.pattern.search(taken):
                edge = route
                break
        if edge.act is Act.BEGIN:
            self._close()
            self._raw = self._raw or []
        if not edge.keeps:
            self._advance(end)
        self._act(edge, taken)
        self.enter(edge.to)

    def _act(self, edge: Edge, taken: str) -> None:
        if edge.act is Act.NAME:
            self._name(edge, taken)
        elif edge.act is Act.KEY:
            assert self._call is not None
            key, raw = _groups(edge, taken, "key", "raw")
            self._call.key((key or taken).strip(), as_text=None if raw is None else raw == "true")
        elif edge.act is Act.VALUE:
            assert self._call is not None
            self._call.value_end()
        elif edge.act is Act.CLOSE:
            self._close()
        elif edge.act is Act.PART:
            self._listener.part()
        elif edge.act is Act.BREAK:
            self._broken()
        to = self._syntax.states[edge.to]
        if isinstance(to, Text) and to.sink in (Sink.CONTENT, Sink.REASONING):
            self._raw = None  # it was the frame around text

    def _name(self, edge: Edge, taken: str) -> None:
        name, call_id = _groups(edge, taken, "name", "id")
        if edge.pattern is not None and name is None:
            raise NotACall(self._at)
        name = (name or taken).strip()
        if isinstance(self._syntax.states[edge.to], of.PythonArguments):
            self._reader = PythonArguments(self._open, self._arguments, self._offered(name))
        else:
            self._open(name, call_id)

    def _offered(self, name: str) -> str:
        if not name or (self._syntax.bare and name not in self._functions):
            raise NotACall
        return name

    def _open(self, name: str, call_id: str | None = None) -> None:
        self._offered(name)
        self._raw = None
        self._listener.open(name, call_id)
        self._call = _Call(self._listener, self._functions.get(name))

    def _arguments(self, fragment: str) -> None:
        assert self._call is not None
        self._call.raw(fragment)

    def _close(self) -> None:
        if self._call is not None:
            self._call.close()
            self._call = None

    def enter(self, name: str) -> None:
        """Goes on in a state."""
        self._taken.clear()
        self._num_taken = 0
        self.state_name = name
        self._state = state = self._syntax.states[name]
        if isinstance(state, of.JsonCall):
            self._reader = JsonCall(self._open, self._arguments, bare=self._syntax.bare)
        elif isinstance(state, of.JsonArguments):
            self._reader = JsonValue(self._arguments)
        elif not isinstance(state, of.PythonArguments):
            self._reader = None

    def _fail(self) -> None:
        """It is no call, or no longer one."""
        raw, self._raw = self._raw, None
        self._close()
        if raw:
            self._listener.content("".join(raw))
        self.enter("text")


class _Call:
    """The arguments of one call, as they are written."""

    def __init__(self, listener: Listener, parameters: object) -> None:
        self._listener = listener
        self._properties = properties(parameters)
        self._given = False
        self._in_object = False  # we write the object: its arguments come one by one
        self._schema: object = None
        self._as_text = False
        self._value: list[str] = []
        self._begun = False
        self._held_break = False

    def raw(self, fragment: str) -> None:
        """JSON as the model wrote it."""
        self._given = True
        self._listener.arguments(fragment)

    def key(self, key: str, *, as_text: bool | None) -> None:
        """The next argument's name; `as_text` where the format says whether the value is a string."""
        self._schema = self._properties.get(key)
        self._as_text = only_text(self._schema) if as_text is None else as_text
        self._listener.arguments(f"{', ' if self._in_object else '{'}{json.dumps(key, ensure_ascii=False)}: ")
        self._in_object = self._given = True
        self._value.clear()
        self._begun = self._held_break = False
        if self._as_text:
            self._listener.arguments('"')

    def value(self, piece: str, *, trims: bool) -> None:
        """A piece of the value. Text goes on at once; for anything else its type shows at the end."""
        if trims:
            piece = self._trimmed(piece)
        if self._as_text:
            self._listener.arguments(escaped(piece))
        else:
            self._value.append(piece)

    def _trimmed(self, piece: str) -> str:
        """Without the first line break, and without the last: one is held back until more comes."""
        if not self._begun:
            self._begun = True
            piece = piece.removeprefix("\n")
        if not piece:
            return ""
        piece = "\n" + piece if self._held_break else piece
        self._held_break = piece.endswith("\n")
        return piece.removesuffix("\n")

    def value_end(self) -> None:
        """The value is complete."""
        self._listener.arguments('"' if self._as_text else as_json("".join(self._value), self._schema))
        self._value.clear()

    def close(self) -> None:
        """The call is complete."""
        if self._in_object:
            self._listener.arguments("}")
        elif not self._given:
            self._listener.arguments("{}")


def _groups(edge: Edge, taken: str, *names: str) -> list[str | None]:
    match = edge.pattern.search(taken) if edge.pattern is not None else None
    found = match.groupdict() if match is not None else {}
    return [found.get(name) for name in names]
