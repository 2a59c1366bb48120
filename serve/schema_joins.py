"""Several schemas that must all hold, as one schema; and whether two can hold at once."""

import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from corymb.serve.rules import TooComplex
from corymb.serve.schema_words import (
    ANNOTATIONS,
    OF_ARRAYS,
    OF_NUMBERS,
    OF_OBJECTS,
    OF_STRINGS,
    TYPES,
    Schema,
    refuse,
)

MAX_COMPARED = 100  # options of a oneOf, each with each other
Key = tuple[str, Any]  # equal for values that JSON Schema takes for equal


def join(one: Schema | bool, other: Schema | bool, path: str) -> Schema | bool:
    """A schema that holds where both hold. Raises Unsupported where no such schema can be written."""
    if isinstance(one, bool) or isinstance(other, bool):
        return other if one is True else one if other is True else False
    one, other = _bare(one), _bare(other)
    _check_neighbours(one, other, path)
    joined = _joined_objects(one, other, path)
    for word in one.keys() | other.keys():
        if word in joined or word in ("additionalProperties", "properties"):
            continue
        if word not in one or word not in other:
            joined[word] = one.get(word, other.get(word))
        else:
            joined[word] = _both(word, one[word], other[word], path)
    if "type" in joined and not joined["type"]:
        return False
    return False if joined.get("enum") == [] else joined


def types_of(schema: Schema) -> frozenset[str]:
    """The types that values of the schema are written in: its own, or those that its keywords speak of, or all.

    `number` includes integers.
    """
    if "type" in schema:
        kinds = schema["type"]
        return frozenset(kinds if isinstance(kinds, list) else [kinds])
    if "enum" in schema:
        return frozenset(type_of(value) for value in schema["enum"])
    implied = {
        kind
        for kind, words in (
            ("object", OF_OBJECTS),
            ("array", OF_ARRAYS),
            ("string", OF_STRINGS),
            ("number", OF_NUMBERS),
        )
        if words & schema.keys()
    }
    return frozenset(implied) or frozenset(TYPES)


def type_of(value: object) -> str:
    """The type of a JSON value; whole numbers are integers."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "boolean"
    if isinstance(value, int | float):
        return "integer" if value == int(value) else "number"
    return "string" if isinstance(value, str) else "array" if isinstance(value, list) else "object"


def key_of(value: Any) -> Key:
    """For comparing values: 1 equals 1.0 and differs from true."""
    if isinstance(value, list):
        return "array", tuple(key_of(item) for item in value)
    if isinstance(value, dict):
        return "object", frozenset((name, key_of(item)) for name, item in value.items())
    kind = type_of(value)
    return ("number" if kind == "integer" else kind), value


def all_apart(options: Sequence[Schema], resolve: Callable[[Any], Schema | bool]) -> bool:
    """Whether it is certain that no value is right for two of them. `resolve` follows references. Raises TooComplex."""
    if _one_property_tells(options, resolve):
        return True
    if len(options) > MAX_COMPARED:
        raise TooComplex(f"no property tells its {len(options)} options apart, and {MAX_COMPARED} can be compared")
    return all(are_apart(one, other, resolve) for one, other in itertools.combinations(options, 2))


def _one_property_tells(options: Sequence[Schema], resolve: Callable[[Any], Schema | bool]) -> bool:
    """Whether all are objects and require a property whose values differ: seen at once, however many there are."""
    if len(options) < 2 or any(types_of(option) != {"object"} for option in options):
        return False
    for name in set.intersection(*map(_required, options)):
        values = [resolve(option["properties"][name]) for option in options]
        keys = [None if isinstance(value, bool) else _keys(_bare(value)) for value in values]
        found = [one for one in keys if one is not None]
        if len(found) == len(options) and sum(map(len, found)) == len(set().union(*found)):
            return True
    return False


def are_apart(one: Schema, other: Schema, resolve: Callable[[Any], Schema | bool]) -> bool:
    """Whether it is certain that no value is right for both. `resolve` follows references."""
    # A keyword that speaks of one type holds for all values of another: what it implies bounds only what is written.
    common = _common_types(types_of(one), _held(other)) | _common_types(_held(one), types_of(other))
    if not common or (_keys(one) is not None and _keys(other) is not None and not _share(one, other)):
        return True
    return common == {"object"} and any(
        _differ(resolve(one["properties"][name]), resolve(other["properties"][name]))
        for name in _required(one) & _required(other)
    )


def _held(schema: Schema) -> frozenset[str]:
    """The types that values may have to be right for the schema."""
    return types_of(schema) if {"type", "enum"} & schema.keys() else frozenset(TYPES)


def _required(schema: Schema) -> set[str]:
    properties: Schema = schema.get("properties", {})
    return set(schema.get("required", ())) & properties.keys()


def _differ(one: Schema | bool, other: Schema | bool) -> bool:
    if isinstance(one, bool) or isinstance(other, bool):
        return False
    one, other = _bare(one), _bare(other)
    return _keys(one) is not None and _keys(other) is not None and not _share(one, other)


def _share(one: Schema, other: Schema) -> bool:
    return bool((_keys(one) or set()) & (_keys(other) or set()))


def _keys(schema: Schema) -> set[Key] | None:
    return {key_of(value) for value in schema["enum"]} if "enum" in schema else None


def _bare(schema: Schema) -> Schema:
    """Without what says nothing about values; a `const` becomes an `enum` of one."""
    bare = {word: value for word, value in schema.items() if word not in ANNOTATIONS and not word.startswith("x-")}
    if "const" in bare:
        value = bare.pop("const")
        bare["enum"] = _shared([value], bare["enum"]) if "enum" in bare else [value]
    return bare


def _check_neighbours(one: Schema, other: Schema, path: str) -> None:
    """Refuses keywords that depend on others of their own schema, where another schema brings some."""
    for word in ("unevaluatedProperties", "unevaluatedItems"):
        if other.get(word, True) is not True:
            refuse(word, path, "can be enforced only where it stands beside the schemas that it depends on")
    for ours, theirs in ((one, other), (other, one)):
        if "prefixItems" in ours and "items" in theirs and "prefixItems" not in theirs:
            refuse("prefixItems", path, "cannot be joined with the items of another schema")
        if "patternProperties" in ours and "additionalProperties" in theirs:
            refuse("patternProperties", path, "cannot be joined with additionalProperties of another schema")


def _joined_objects(one: Schema, other: Schema, path: str) -> Schema:
    """The keywords about properties, of which one depends on the other."""
    ours, theirs = one.get("properties", {}), other.get("properties", {})
    if not (ours or theirs or "additionalProperties" in one or "additionalProperties" in other):
        return {}
    names = dict.fromkeys([*ours, *theirs])
    for schema, own in ((one, ours), (other, theirs)):
        rest = schema.get("additionalProperties", True)
        if rest is False:
            names = {name: None for name in names if name in own}
        elif rest is not True and (len(names) > len(own) or "additionalProperties" in (one.keys() & other.keys())):
            refuse("additionalProperties", path, "cannot be joined with the properties of another schema")
    joined: Schema = {"properties": {name: _property(name, ours, theirs) for name in names}}
    rests = [schema["additionalProperties"] for schema in (one, other) if "additionalProperties" in schema]
    if rests:
        joined["additionalProperties"] = False if False in rests else next((r for r in rests if r is not True), True)
    return joined


def _property(name: str, ours: Mapping[str, Any], theirs: Mapping[str, Any]) -> Schema | bool:
    if name in ours and name in theirs:
        return {"allOf": [ours[name], theirs[name]]}
    schema: Schema | bool = ours[name] if name in ours else theirs[name]
    return schema


def _both(word: str, one: Any, other: Any, path: str) -> Any:
    if one == other and type(one) is type(other):
        return one
    if word == "type":
        return sorted(_common_types(types_of({"type": one}), types_of({"type": other})))
    if word in ("items", "propertyNames"):
        return {"allOf": [one, other]}
    if word not in _JOINS:
        refuse(word, path, "is said twice, and both cannot be followed at once")
    return _JOINS[word](one, other)


def _common_types(one: Iterable[str], other: Iterable[str]) -> set[str]:
    one, other = set(one), set(other)
    common = one & other
    if "number" in one | other and "integer" in one | other and "number" not in common:
        common.add("integer")
    return common


def _shared(one: list[Any], other: list[Any]) -> list[Any]:
    keys = {key_of(value) for value in other}
    return [value for value in one if key_of(value) in keys]


_JOINS: Mapping[str, Callable[[Any, Any], Any]] = {
    **dict.fromkeys(("minimum", "exclusiveMinimum", "minLength", "minItems", "minProperties"), max),
    **dict.fromkeys(("maximum", "exclusiveMaximum", "maxLength", "maxItems", "maxProperties"), min),
    "required": lambda one, other: list(dict.fromkeys([*one, *other])),
    "uniqueItems": lambda one, other: one or other,
    "enum": _shared,
}
