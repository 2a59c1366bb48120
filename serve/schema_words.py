"""The keywords of JSON Schema 2020-12: which are followed, which say nothing about a value, and their own types."""

from collections.abc import Callable, Mapping
from typing import Any, NoReturn

Schema = dict[str, Any]

TYPES = ("null", "boolean", "integer", "number", "string", "array", "object")

ANNOTATIONS = frozenset(
    (
        *("$schema", "$id", "$comment", "$anchor", "$defs", "definitions", "title", "description", "default"),
        *("examples", "example", "deprecated", "readOnly", "writeOnly", "discriminator"),
    )
)
OF_OBJECTS = frozenset(
    (
        *("properties", "required", "additionalProperties", "patternProperties", "propertyNames"),
        *("minProperties", "maxProperties", "unevaluatedProperties"),
    )
)
OF_ARRAYS = frozenset(("items", "prefixItems", "minItems", "maxItems", "uniqueItems", "unevaluatedItems"))
OF_STRINGS = frozenset(("minLength", "maxLength", "pattern", "format"))
OF_NUMBERS = frozenset(("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"))
OF_ALL = frozenset(("type", "enum", "const", "anyOf", "oneOf", "allOf", "$ref"))
FOLLOWED = OF_OBJECTS | OF_ARRAYS | OF_STRINGS | OF_NUMBERS | OF_ALL

INSTEAD = {
    "additionalItems": "use prefixItems and items",
    "dependencies": "use anyOf with the cases written out",
    "dependentRequired": "use anyOf with the cases written out",
    "dependentSchemas": "use anyOf with the cases written out",
    "if": "use anyOf with the cases written out",
    "then": "use anyOf with the cases written out",
    "else": "use anyOf with the cases written out",
    "not": "say what is allowed instead",
    "nullable": 'use anyOf with {"type": "null"}',
}


class Unsupported(Exception):
    """A keyword that cannot be followed, or is wrong; one sentence that names it and its place."""


def refuse(keyword: str, path: str, why: str = "cannot be enforced") -> NoReturn:
    """Says which keyword it is, and where."""
    hint = f": {INSTEAD[keyword]}" if keyword in INSTEAD else ""
    raise Unsupported(f"the keyword {keyword!r} at {path or '/'} {why}{hint}")


def check_words(schema: Schema, path: str) -> None:
    """Every keyword of one schema, not of those inside it. Raises Unsupported."""
    for word, value in schema.items():
        if word not in FOLLOWED and word not in ANNOTATIONS and not word.startswith("x-"):
            refuse(word, path)
        accepts = _SHAPES.get(word)
        if accepts is not None and not accepts(value):
            refuse(word, path, "has a value that it may not have")
    if path and "$id" in schema:
        refuse("$id", path)


def _is_schema(value: object) -> bool:
    return isinstance(value, dict | bool)


def _is_schemas(value: object) -> bool:
    return isinstance(value, list) and bool(value) and all(map(_is_schema, value))


def _is_schema_map(value: object) -> bool:
    return isinstance(value, dict) and all(map(_is_schema, value.values()))


def _is_names(value: object) -> bool:
    return isinstance(value, list) and all(isinstance(item, str) for item in value)


def _is_count(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and value >= 0 and value == int(value)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_type(value: object) -> bool:
    kinds = value if isinstance(value, list) and value else [value]
    return all(isinstance(kind, str) and kind in TYPES for kind in kinds)


_SHAPES: Mapping[str, Callable[[object], bool]] = {
    "type": _is_type,
    "enum": lambda value: isinstance(value, list) and bool(value),
    **dict.fromkeys(("anyOf", "oneOf", "allOf", "prefixItems"), _is_schemas),
    **dict.fromkeys(("properties", "patternProperties", "$defs", "definitions"), _is_schema_map),
    **dict.fromkeys(
        ("items", "additionalProperties", "propertyNames", "unevaluatedProperties", "unevaluatedItems"), _is_schema
    ),
    **dict.fromkeys(("minLength", "maxLength", "minItems", "maxItems", "minProperties", "maxProperties"), _is_count),
    **dict.fromkeys(("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"), _is_number),
    "multipleOf": lambda value: _is_number(value) and value > 0,  # type: ignore[operator]
    "required": _is_names,
    **dict.fromkeys(("pattern", "format", "$ref", "$schema", "$id", "$anchor"), lambda value: isinstance(value, str)),
    "uniqueItems": lambda value: isinstance(value, bool),
}
