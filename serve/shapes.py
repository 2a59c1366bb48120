"""JSON Schemas of plain values, and what larger ones are put together with."""

from collections.abc import Mapping
from typing import Any

Schema = Mapping[str, Any]

TEXT: Schema = {"type": "string"}
COUNT: Schema = {"type": "integer", "minimum": 0}
NUMBER: Schema = {"type": "number"}
FLAG: Schema = {"type": "boolean"}
OBJECT: Schema = {"type": "object"}
SET: Schema = {"not": {"type": "null"}}


def record(required: Mapping[str, Schema], optional: Mapping[str, Schema] | None = None) -> Schema:
    """An object with these members; others may come with later versions."""
    members = {**required, **(optional or {})}
    return {"type": "object", "properties": members, "required": list(required)}


def array(items: Schema, **bounds: int) -> Schema:
    """A list of them."""
    return {"type": "array", "items": items, **bounds}


def either(*schemas: Schema) -> Schema:
    """Any one of them."""
    return {"anyOf": list(schemas)}


def or_null(schema: Schema) -> Schema:
    """The same, or null. An empty schema takes null already."""
    if not schema:
        return schema
    if "enum" in schema:
        return {**schema, "enum": [*schema["enum"], None]}
    return either(schema, {"type": "null"})


def one_of(*names: str) -> Schema:
    """An object where exactly one of these members is set."""
    return {"oneOf": [has(name) for name in names]}


def has(name: str) -> Schema:
    """An object where this member is set."""
    return {"required": [name], "properties": {name: SET}}


def enum(*values: object) -> Schema:
    """One of these values."""
    return {"enum": list(values)}
