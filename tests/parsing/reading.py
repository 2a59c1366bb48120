"""Reads whole or cut texts and says what came of them."""

import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from corymb.serve.events import Content, Event, Reasoning, ToolArguments, ToolOpened
from corymb.serve.output_parser import OutputParsers, Reading, is_opened
from corymb.serve.tokenizer import byte_tokenizer

TOKENIZER = byte_tokenizer()
FUNCTIONS: dict[str, Any] = {
    "get_weather": {
        "type": "object",
        "properties": {
            "city": {"type": "string"},
            "days": {"type": "integer"},
            "opt": {"type": "object"},
            "tags": {"type": "array"},
            "unit": {"enum": ["c", "f"]},
            "note": {"anyOf": [{"type": "string"}, {"type": "null"}]},
        },
        "required": ["city"],
    },
    "now": {"type": "object", "properties": {}},
}


@dataclass
class Said:
    """Everything a text said, joined."""

    content: str = ""
    reasoning: str = ""
    calls: list[tuple[str, str]] = field(default_factory=list)  # name and arguments

    def decoded(self) -> list[tuple[str, Any]]:
        return [(name, json.loads(arguments)) for name, arguments in self.calls]


def said(events: Iterable[Event]) -> Said:
    result = Said()
    for event in events:
        if isinstance(event, Content):
            result.content += event.text
        elif isinstance(event, Reasoning):
            result.reasoning += event.text
        elif isinstance(event, ToolOpened):
            assert event.index == len(result.calls), "calls open in order"
            result.calls.append((event.name, ""))
        else:
            assert isinstance(event, ToolArguments)
            assert event.index == len(result.calls) - 1, "arguments belong to the last call"
            name, arguments = result.calls[-1]
            result.calls[-1] = name, arguments + event.fragment
    return result


def reading(
    tools: str | None = None,
    reasoning: str | None = None,
    prompt: str = "",
    *,
    variables: dict[str, Any] | None = None,
    functions: dict[str, Any] = FUNCTIONS,
    **options: Any,
) -> Reading:
    """As for a request that offers functions if `tools` names a parser."""
    parsers = OutputParsers(reasoning, tools, TOKENIZER)
    thinking = parsers.thinking(prompt, variables or {})
    opened = thinking is not None and is_opened(prompt, thinking)
    return Reading(thinking=thinking, opened=opened, syntax=parsers.syntax, functions=functions, **options)


def read(how: Reading, *pieces: str) -> Said:
    return said(events(how, *pieces))


def events(how: Reading, *pieces: str) -> list[Event]:
    parser = how.parser()
    found = [event for piece in pieces for event in parser.feed(piece)]
    return found + parser.end()


def check_cuts(how: Reading, text: str) -> Said:
    """The same for every cut into two, one character at a time, and whole."""
    whole = read(how, text)
    assert read(how, *text) == whole
    for at in range(1, len(text)):
        assert read(how, text[:at], text[at:]) == whole, (text[:at], text[at:])
    return whole
