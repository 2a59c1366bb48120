"""Arguments that a format writes as plain text, made into JSON by the type that the function declares."""

import ast
import json
import re
from collections.abc import Mapping
from typing import Any

import msgspec

_MAX_LITERAL_CHARS = 4096  # Python's own parser is asked no more than this
_MAX_LITERAL_DEPTH = 32
_ESCAPED = re.compile(r"[\x00-\x1f\"\\]")
_WORDS = {"True": "true", "False": "false", "None": "null"}


def only_text(schema: object) -> bool:
    """Whether a schema takes strings and nothing else, so that a value needs no reading to be written."""
    if not isinstance(schema, Mapping):
        return False
    options = schema.get("anyOf") or schema.get("oneOf")
    if isinstance(options, list):
        return all(only_text(option) for option in options)
    values = schema.get("enum")
    if "type" not in schema and isinstance(values, list):
        return bool(values) and all(isinstance(value, str) for value in values)
    return schema.get("type") in ("string", ["string"])


def takes_text(schema: object) -> bool:
    """Whether a schema takes strings at all, as far as its types say; one without types takes anything."""
    if not isinstance(schema, Mapping):
        return True
    options = schema.get("anyOf") or schema.get("oneOf")
    if isinstance(options, list):
        return any(takes_text(option) for option in options)
    kind = schema.get("type", "string")
    return "string" in kind if isinstance(kind, list) else kind == "string"


def properties(parameters: object) -> Mapping[str, Any]:
    """The schemas of a function's arguments, by name."""
    found = parameters.get("properties") if isinstance(parameters, Mapping) else None
    return found if isinstance(found, Mapping) else {}


def escaped(text: str) -> str:
    """A piece of the inside of a JSON string."""
    return json.dumps(text, ensure_ascii=False)[1:-1] if _ESCAPED.search(text) else text


def as_json(text: str, schema: object) -> str:
    """The JSON of a whole value: as JSON if it is that, as a Python literal, else as a string."""
    value = text.strip()
    if is_json(value):
        return value
    if value in _WORDS:
        return _WORDS[value]
    literal = None if takes_text(schema) else _literal(value)
    return literal if literal is not None else json.dumps(text, ensure_ascii=False)


def is_json(text: str) -> bool:
    """Whether a text is one JSON value."""
    try:
        msgspec.json.decode(text)
    except (msgspec.DecodeError, msgspec.ValidationError, RecursionError, UnicodeError):
        return False
    return True


def _literal(text: str) -> str | None:
    """Lists and objects that a model wrote with Python's quotes and words."""
    if len(text) > _MAX_LITERAL_CHARS or sum(map(text.count, "([{-+~")) > _MAX_LITERAL_DEPTH:
        return None
    try:
        return json.dumps(ast.literal_eval(text), ensure_ascii=False, allow_nan=False)
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        return None
