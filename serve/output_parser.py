"""From the text that a model writes to reasoning, content and tool calls."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache, partial
from typing import Any

from corymb.scheduler.messages import Thinking as ThinkingLimit
from corymb.serve.behind_calls import BehindCalls
from corymb.serve.events import Content, Event
from corymb.serve.machine import Functions, Machine
from corymb.serve.reasoning_syntaxes import (
    HARMONY_THOUGHT,
    REASONING,
    MarkIds,
    Thinking,
    reasoning_syntax,
)
from corymb.serve.spoken import Spoken
from corymb.serve.syntax import Syntax
from corymb.serve.tokenizer import Tokenizer
from corymb.serve.tool_syntaxes import HARMONY, TOOL_SYNTAXES

_reasoning_syntax = lru_cache(maxsize=64)(reasoning_syntax)


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """How the answers to one request are read; makes a parser for each choice."""

    thinking: Thinking | None = None  # None: no reasoning is looked for
    opened: bool = False  # the prompt ends inside the reasoning
    separates: bool = True  # reasoning is told apart; else it is content, marks included (harmony's are still read)
    keeps_space: bool = False  # behind reasoning it belongs to the content
    streams: bool = True  # reasoning comes as it is written; else in one piece
    syntax: Syntax | None = None  # of tool calls; None: none are looked for
    functions: Functions = field(default_factory=dict)

    @property
    def looks(self) -> bool:
        """Whether anything is looked for; else all text is content."""
        return self.front is not None or self.calls is not None

    @property
    def front(self) -> Thinking | None:
        """The reasoning that is told apart before calls are looked for in the rest."""
        return self.thinking if self.separates and self.thinking is not None and not self.thinking.harmony else None

    @property
    def calls(self) -> Syntax | None:
        """How calls are looked for. Harmony has one syntax for both, even where no call is expected."""
        return HARMONY if self.thinking is not None and self.thinking.harmony else self.syntax

    @property
    def marks(self) -> list[str]:
        """The strings that are looked for: special tokens in them must be in the text."""
        thinking = [] if self.thinking is None else [self.thinking.opening, self.thinking.closing]
        return thinking + (self.calls.marks if self.calls is not None else [])

    def parser(self) -> "OutputParser":
        """A parser for one choice."""
        return OutputParser(self)


class OutputParser:
    """Turns the text of one choice, as it comes, into events. Joined, they do not depend on how the text was cut."""

    def __init__(self, reading: Reading) -> None:
        calls = reading.calls
        ids = calls.ids if calls is not None else "call"
        self._spoken = Spoken(
            separates=reading.separates, streams=reading.streams, ids=ids, keeps_space=reading.keeps_space
        )
        self._behind = BehindCalls(self._spoken)
        self._machines: list[Machine] = []  # the first reads the text, each of the others its content
        if calls is not None:
            self._machines.append(Machine(calls, self._behind, reading.functions))
        if reading.front is not None:
            self._machines.insert(0, self._reasoning(reading, reading.front))

    def _reasoning(self, reading: Reading, thinking: Thinking) -> Machine:
        listener = _Front(self._spoken, self._machines[0]) if self._machines else self._spoken
        interruptions = reading.syntax.begins if reading.syntax is not None else ()
        start = "opened" if reading.opened else "unsure"
        broken = partial(self._behind.break_off, thinking.closing)
        return Machine(_reasoning_syntax(thinking, interruptions), listener, {}, start=start, broken=broken)

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
        self._behind.end()
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

    def __init__(self, reasoning: str | None, tools: str | None, tokenizer: Tokenizer) -> None:
        self.syntax = TOOL_SYNTAXES[tools] if tools is not None else None
        self._thinking = REASONING[reasoning] if reasoning is not None else None
        if self._thinking is None and self.syntax is HARMONY:
            self._thinking = REASONING["gpt-oss"]
        self._tokenizer = tokenizer
        self.mark_ids = self._mark_ids()
        self.short_ids = self.syntax is not None and self.syntax.ids == "short"  # of calls in the history too
        self._shown: dict[tuple[str, ...], tuple[int, ...]] = {}
        spelling = tokenizer.spelling
        self._specials = {spelling[token_id].decode("utf-8", "replace"): token_id for token_id in spelling.specials}

    def thinking(self, prompt: str, variables: Mapping[str, Any]) -> Thinking | None:
        """How the model marks its reasoning in the answer to a prompt; None where there will be none."""
        thinking = self._thinking
        if thinking is None or thinking.harmony:
            return thinking
        if thinking.switch is not None and not variables.get(thinking.switch, thinking.default):
            return None
        return None if prompt.rstrip().endswith(thinking.closing) else thinking

    def limit(self, max_tokens: int, *, opened: bool) -> ThinkingLimit | None:
        """A limit on the tokens of a thought; None where this server knows no thoughts."""
        thinking = self._thinking
        if thinking is None:
            return None
        if thinking.harmony:
            begin, end = HARMONY_THOUGHT
        else:
            begin, end = "" if opened else thinking.opening, thinking.closing
        return ThinkingLimit(max_tokens, self._ids(end), self._ids(begin))

    def _mark_ids(self) -> MarkIds:
        thinking = self._thinking
        return MarkIds() if thinking is None else MarkIds(self._ids(thinking.opening), self._ids(thinking.closing))

    def _ids(self, text: str) -> tuple[int, ...]:
        return tuple(self._tokenizer.encode(text, add_special_tokens=False))

    def shown_specials(self, reading: Reading) -> tuple[int, ...]:
        """The special tokens that its marks are made of."""
        marks = tuple(reading.marks)
        if marks not in self._shown:  # tokenizers can have a thousand special tokens; sets of marks are few
            found = (i for name, i in self._specials.items() if name and any(name in mark for mark in marks))
            self._shown[marks] = tuple(sorted(found))
        return self._shown[marks]


def is_opened(prompt: str, thinking: Thinking) -> bool:
    """Whether the answer goes on inside the reasoning: the family does so always, or the prompt ends with the mark."""
    return thinking.forced or (not thinking.harmony and prompt.rstrip().endswith(thinking.opening))
