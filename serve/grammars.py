"""What clients ask an answer to follow, in any dialect's words, as one `Grammar`."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from corymb.scheduler.messages import Grammar
from corymb.serve.errors import invalid, shown

Json = Mapping[str, Any]
ANY_JSON = Grammar("json_object", "")


@dataclass(frozen=True, slots=True)
class CallSyntax:
    """How a model's family writes a tool call: `begin` with {name} in it, the arguments, `end`."""

    trigger: str  # the text that can only open a call; every `begin` starts with it
    begin: str
    end: str
    style: Literal["json", "qwen_xml", "glm_xml", "deepseek_xml"] = "json"  # of the arguments


def from_response_format(param: str, value: object) -> Grammar | None:
    """OpenAI's `response_format`; None for plain text. Raises ApiError."""
    kind = value.get("type") if isinstance(value, dict) else None
    if not isinstance(value, dict) or not isinstance(kind, str):
        raise invalid(param, f'must be an object with a `type`, as {{"type": "text"}}, not {shown(value)}.')
    if kind == "text":
        return None
    if kind == "json_object":
        return ANY_JSON
    if kind == "json_schema":
        return from_schema(f"{param}.json_schema.schema", _named_schema(param, value))
    if kind == "structural_tag":
        return from_structural_tag(param, value)
    raise invalid(param, f"has the unknown type {shown(kind)}.")


def from_schema(param: str, schema: object) -> Grammar:
    """A JSON schema, as an object or as the JSON of one. Raises ApiError."""
    return Grammar("json_schema", _compact(_parsed(param, schema)))


def from_structural_tag(param: str, tag: object) -> Grammar:
    """A structural tag, as an object or as the JSON of one. Raises ApiError."""
    parsed = _parsed(param, tag)
    if not isinstance(parsed, dict) or not isinstance(parsed.get("format"), dict):
        raise invalid(param, 'must be an object {"type": "structural_tag", "format": {…}}.')
    return Grammar("structural_tag", _compact({"type": "structural_tag", "format": parsed["format"]}))


def from_tools(functions: Mapping[str, Json | bool], syntax: CallSyntax, *, required: bool, parallel: bool) -> Grammar:
    """Calls of `functions` (name to schema of the arguments), in the model's own syntax. `required`: nothing else may
    be said; otherwise text may stand before and between calls. Not `parallel`: one call ends the answer."""
    tags = [_call_tag(name, schema, syntax) for name, schema in functions.items()]
    calls = {
        "type": "triggered_tags",
        "triggers": [syntax.trigger],
        "tags": tags,
        "at_least_one": required,
        "stop_after_first": not parallel,
    }
    return Grammar("structural_tag", _compact({"type": "structural_tag", "format": calls}))


def from_regex(param: str, pattern: object) -> Grammar:
    """A regular expression for the whole answer. Raises ApiError."""
    return Grammar("regex", _text(param, pattern))


def from_ebnf(param: str, rules: object) -> Grammar:
    """A grammar in GBNF with a rule `root`. Raises ApiError."""
    return Grammar("ebnf", _text(param, rules))


def from_choices(param: str, choices: Sequence[str]) -> Grammar:
    """One of several strings, exactly."""
    if not choices:
        raise invalid(param, "must have at least one entry.")
    return Grammar("ebnf", "root ::= " + " | ".join(json.dumps(choice) for choice in choices))


def _named_schema(param: str, value: Json) -> object:
    named = value.get("json_schema")
    if not isinstance(named, dict) or "schema" not in named:
        raise invalid(param, 'of type json_schema must hold {"json_schema": {"name": …, "schema": {…}}}.')
    return named["schema"]


def _call_tag(name: str, schema: Json | bool, syntax: CallSyntax) -> dict[str, Any]:
    content = {"type": "json_schema", "json_schema": schema, "style": syntax.style}
    return {"type": "tag", "begin": syntax.begin.replace("{name}", name), "content": content, "end": syntax.end}


def _text(param: str, value: object) -> str:
    if not isinstance(value, str) or not value:
        raise invalid(param, f"must be a string that is not empty, not {shown(value)}.")
    return value


def _parsed(param: str, value: object) -> object:
    if not isinstance(value, str):
        return value
    try:
        return json.loads(value)
    except (ValueError, RecursionError):
        raise invalid(param, "is not valid JSON.") from None


def _compact(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))
