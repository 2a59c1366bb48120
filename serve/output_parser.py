"""From the text that a model writes to reasoning, content and tool calls."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from corymb.serve.events import Content, Event
from corymb.serve.machine import Functions, Machine
from corymb.serve.reasoning_syntaxes import REASONING, Thinking, reasoning_syntax
from corymb.serve.spoken import Spoken
from corymb.serve.syntax import Syntax
from corymb.serve.tool_syntaxes import HARMONY, TOOL_SYNTAXES

_reasoning_syntax = lru_cache(maxsize=64)(reasoning_syntax)


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """How the answers to one request are read; makes a parser for each choice."""

    thinking: Thinking | None = None  # None: no reasoning is looked for
    opened: bool = False  # the prompt ends inside the reasoning
    separates: bool = True  # reasoning is told apart; else it is content (but harmony's headers are still read)
    syntax: Syntax | None = None  # of tool calls; None: none are looked for
    functions: Functions = field(default_factory=dict)

    @property
    def shows_specials(self) -> bool:
        """Whether marks are looked for, so that special tokens must be in the text."""
        return self.thinking is not None or self.syntax is not None

    def parser(self) -> "OutputParser":
        """A parser for one choice."""
        return OutputParser(self)


class OutputParser:
    """Turns the text of one choice, as it comes, into events. Joined, they do not depend on how the text was cut."""

    def __init__(self, reading: Reading) -> None:
        syntax, thinking = reading.syntax, reading.thinking
        self._spoken = Spoken(separates=reading.separates, ids=syntax.ids if syntax is not None else "call")
        self._machines: list[Machine] = []  # the first reads the text, each of the others its content
        if syntax is not None or (thinking is not None and thinking.harmony):
            calls = HARMONY if thinking is not None and thinking.harmony else syntax
            assert calls is not None
            self._machines.append(Machine(calls, self._spoken, reading.functions))
        if thinking is not None and not thinking.harmony:
            self._machines.insert(0, self._reasoning(reading, thinking))

    def _reasoning(self, reading: Reading, thinking: Thinking) -> Machine:
        listener = _Front(self._spoken, self._machines[0]) if self._machines else self._spoken
        interruptions = reading.syntax.begins if reading.syntax is not None else ()
        start = "opened" if reading.opened else "unsure"
        return Machine(_reasoning_syntax(thinking, interruptions), listener, {}, start=start)

    def feed(self, text: str) -> list[Event]:
        """The events of a piece of text."""
        if not self._machines:
            return [Content(text)] if text else []
        self._machines[0].feed(text)
        return self._spoken.take()

    def end(self) -> list[Event]:
        """The events of what was held back."""
        for machine in self._machines:
            machine.end()
        self._spoken.end()
        return self._spoken.take()


class _Front:
    """Passes reasoning on and gives the content to the machine that looks for calls in it."""

    def __init__(self, spoken: Spoken, machine: Machine) -> None:
        self._machine = machine
        self.reasoning = spoken.reasoning
        self.part = spoken.part
        self.open = spoken.open
        self.arguments = spoken.arguments

    def content(self, text: str) -> None:
        """Content that may hold calls."""
        self._machine.feed(text)


class OutputParsers:
    """Chooses how answers are read, by the server's flags and each request."""

    def __init__(self, reasoning: str | None, tools: str | None) -> None:
        self.thinking = REASONING[reasoning] if reasoning is not None else None
        self.syntax = TOOL_SYNTAXES[tools] if tools is not None else None

    def reading(
        self,
        prompt: str,
        *,
        functions: Functions | None,
        separates: bool = True,
        variables: Mapping[str, Any] | None = None,
    ) -> Reading:
        """For the answers to a prompt. `functions` None: calls are not looked for."""
        thinking = self._thinking(prompt, variables or {})
        harmony = thinking is not None and thinking.harmony
        calls = self.syntax if functions is not None else None
        return Reading(
            thinking=thinking if separates or harmony else None,
            opened=thinking is not None and _opened(prompt, thinking),
            separates=separates,
            syntax=calls,
            functions=functions or {},
        )

    def _thinking(self, prompt: str, variables: Mapping[str, Any]) -> Thinking | None:
        """None: this answer holds no reasoning."""
        thinking = self.thinking
        if thinking is None:
            return HARMONY_THINKING if self.syntax is HARMONY else None
        if thinking.switch is not None and not variables.get(thinking.switch, thinking.default):
            return None
        return None if not thinking.harmony and prompt.rstrip().endswith(thinking.closing) else thinking


HARMONY_THINKING = REASONING["gpt-oss"]


def _opened(prompt: str, thinking: Thinking) -> bool:
    return thinking.forced or (not thinking.harmony and prompt.rstrip().endswith(thinking.opening))
