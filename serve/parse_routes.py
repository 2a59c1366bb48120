"""POST /parse_function_call and /separate_reasoning: texts from elsewhere, read as answers are."""

import asyncio
from collections.abc import Sequence
from typing import Any

from corymb.serve.answer import Choice, encode
from corymb.serve.body import read_json
from corymb.serve.call import Call
from corymb.serve.errors import ApiError, invalid, shown
from corymb.serve.fields import Field, string
from corymb.serve.output_parser import Reading, is_opened
from corymb.serve.parts import Parts
from corymb.serve.reasoning_syntaxes import REASONING
from corymb.serve.requests import read_fields, table
from corymb.serve.tool_syntaxes import TOOL_SYNTAXES
from corymb.serve.tools import Function, tools_field

MAX_CHARS = 1 << 20
_INLINE_CHARS = 16_384  # more is read in a thread


def parse_fields() -> dict[str, Field]:
    """Fields of /parse_function_call."""
    return table([string("text", MAX_CHARS), _one_of("tool_call_parser", sorted(TOOL_SYNTAXES)), tools_field()])


def separate_fields() -> dict[str, Field]:
    """Fields of /separate_reasoning."""
    return table([string("text", MAX_CHARS), _one_of("reasoning_parser", sorted(REASONING))])


def _one_of(name: str, values: Sequence[str]) -> Field:
    def read(param: str, value: object) -> str:
        if not isinstance(value, str) or value not in values:
            raise invalid(param, f"must be one of {', '.join(values)}, not {shown(value)}.")
        return value

    return Field(name, f"one of {', '.join(values)}", read, schema={"enum": list(values)})


class ParseRoutes:
    """Reads texts without generating any."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts

    async def parse_function_call(self, call: Call) -> None:
        """Calls and what stands beside them."""
        values = await self._read(call, parse_fields(), "text", "tool_call_parser")
        functions: Sequence[Function] = values.get("tools", ())
        parameters = {function.name: function.parameters for function in functions}
        syntax = TOOL_SYNTAXES[values["tool_call_parser"]]
        said = await _said(Reading(syntax=syntax, functions=parameters), values["text"])
        calls = [
            {"tool_index": index, "name": made.name, "parameters": made.text} for index, made in enumerate(said.calls)
        ]
        await call.answer(200, encode({"normal_text": said.text, "calls": calls}))

    async def separate_reasoning(self, call: Call) -> None:
        """Reasoning and the answer behind it."""
        values = await self._read(call, separate_fields(), "text", "reasoning_parser")
        thinking = REASONING[values["reasoning_parser"]]
        said = await _said(Reading(thinking=thinking, opened=is_opened("", thinking)), values["text"])
        await call.answer(200, encode({"reasoning_text": said.reasoning, "text": said.text}))

    async def _read(self, call: Call, fields: dict[str, Field], *required: str) -> dict[str, Any]:
        values = read_fields(fields, await read_json(call, self._parts.settings), call)
        for name in required:
            if name not in values:
                raise ApiError("invalid_value", f"`{name}` is required.", param=name)
        return values


async def _said(reading: Reading, text: str) -> Choice:
    if len(text) <= _INLINE_CHARS:
        return _read_whole(reading, text)
    return await asyncio.to_thread(_read_whole, reading, text)


def _read_whole(reading: Reading, text: str) -> Choice:
    parser, choice = reading.parser(), Choice()
    choice.take([*parser.feed(text), *parser.end()])
    return choice
