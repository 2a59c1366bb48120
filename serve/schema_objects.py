"""The objects of a schema."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from corymb.serve import strings
from corymb.serve.patterns import BadPattern
from corymb.serve.rules import Rules, any_of, characters, complement, intersection, literal, normal
from corymb.serve.schema_words import Schema, refuse

if TYPE_CHECKING:
    from corymb.serve.schemas import Writer


@dataclass(frozen=True, slots=True)
class Pair:
    """A property by name."""

    rule: str
    required: bool


def object_rule(writer: "Writer", schema: Schema, path: str) -> str | None:
    """Its objects: the named properties in their order, then others. None where there are none."""
    pairs = _pairs(writer, schema, path)
    if pairs is None:
        return None
    others = _others(writer, schema, path, named=bool({"properties", "required"} & schema.keys()))
    least, most = int(schema.get("minProperties", 0)), schema.get("maxProperties")
    if pairs:
        return _named(writer, schema, path, pairs, others)
    space = writer.space()
    if others is None or most == 0:
        return writer.rules.add(f'"{{" {space} "}}"') if least == 0 else None
    if least > 1:
        # A repeated name would count twice here and once for whoever reads the answer.
        refuse("minProperties", path, "can be enforced up to 1, or up to the number of required properties")
    limit = "*" if most is None else f"{{0,{int(most) - 1}}}"
    full = f'{others} ("," {space} {others}){limit} {space} "}}"'
    return writer.rules.add(f'"{{" {space} ({full}' + (")" if least else ' | "}")'))


def _pairs(writer: "Writer", schema: Schema, path: str) -> list[Pair] | None:
    """The named properties; None where a required one cannot be."""
    properties: dict[str, Any] = dict(schema.get("properties", {}))
    required = set(schema.get("required", ()))
    if "patternProperties" in schema and (properties or required):
        refuse("patternProperties", path, "cannot be followed beside named properties")
    if "propertyNames" in schema and (properties or required):
        refuse("propertyNames", path, "cannot be followed beside named properties")
    for name in schema.get("required", ()):
        properties.setdefault(name, schema.get("additionalProperties", True))
    pairs = []
    for name, inner in properties.items():
        writer.count_property()
        rule = writer.inside(inner, f"{path}/properties/{name}")
        if rule is not None:
            key = literal(f'"{strings.json_literal(name)}"')
            pairs.append(Pair(writer.rules.add(f'{key} ":" {writer.space()} {rule}'), name in required))
        elif name in required:
            return None
    return pairs


def _named(writer: "Writer", schema: Schema, path: str, pairs: Sequence[Pair], others: str | None) -> str:
    rules, space = writer.rules, writer.space()
    num_required = sum(pair.required for pair in pairs)
    least, most = schema.get("minProperties", 0), schema.get("maxProperties")
    if least > max(num_required, 1):
        refuse("minProperties", path, "can be enforced up to 1, or up to the number of required properties")
    if most is not None and (others is not None or most < len(pairs)):
        refuse("maxProperties", path, "cannot be followed beside named properties that are more, or others")
    # What may come behind pair i when something stands before it, and when nothing does; from the last pair back.
    behind = '""' if others is None else rules.add(f'("," {space} {others})*')
    first = [] if least > num_required else ['""']
    if others is not None:
        first.append(f'{others} ("," {space} {others})*')
    for pair in reversed(pairs):
        here = f"{pair.rule} {behind}"
        first = [here] if pair.required else [here, *first]
        # Each as a rule of its own, or a schema of n optional properties would be written in n² parts.
        first = [rules.add(any_of(first))] if first else []
        behind = rules.add(f'"," {space} {here}' + ("" if pair.required else f" | {behind}"))
    return rules.add(f'"{{" {space} {first[0]} {space} "}}"')


def _others(writer: "Writer", schema: Schema, path: str, *, named: bool) -> str | None:
    """A property that is not named; None where there may be none."""
    rest = schema.get("additionalProperties", not named)
    if schema.get("unevaluatedProperties", True) is not True:
        if "additionalProperties" in schema and rest is not False:
            refuse("unevaluatedProperties", path, "cannot be followed beside additionalProperties")
        if schema["unevaluatedProperties"] is not False:
            refuse("unevaluatedProperties", path, "can be enforced only as false")
        rest = False
    if "patternProperties" in schema:
        return _patterned(writer, schema, path)
    value = writer.inside(rest, f"{path}/additionalProperties")
    if value is None:
        return None
    key = _key(writer, schema, path)
    return None if key is None else writer.rules.add(f'{key} ":" {writer.space()} {value}')


def _patterned(writer: "Writer", schema: Schema, path: str) -> str | None:
    patterns = schema["patternProperties"]
    if len(patterns) != 1 or "propertyNames" in schema:
        refuse("patternProperties", path, "can be enforced for one pattern alone")
    ((pattern, inner),) = patterns.items()
    value = writer.inside(inner, f"{path}/patternProperties")
    if value is None:
        return None
    try:
        key = strings.matching_string(writer.rules, pattern, 0, None)
    except BadPattern as error:
        refuse("patternProperties", path, f"cannot be followed, {error}")
    return writer.rules.add(f'{key} ":" {writer.space()} {value}')


def _key(writer: "Writer", schema: Schema, path: str) -> str | None:
    names = schema.get("propertyNames", True)
    if names is not True:
        joined = names if isinstance(names, bool) else {"allOf": [{"type": "string"}, names]}
        return writer.inside(joined, f"{path}/propertyNames")
    return other_name(writer.rules, {*schema.get("properties", {}), *schema.get("required", ())})


def other_name(rules: Rules, names: set[str]) -> str:
    """A JSON string that is none of `names`: it leaves the tree of their letters at some point."""
    if not names:
        return strings.json_string(rules)
    return rules.add(f'"\\u0022" {_leaving(rules, sorted(names), 0)}')


def _leaving(rules: Rules, names: Sequence[str], depth: int) -> str:
    """The rest of such a string behind `depth` letters that all of `names` begin with."""
    by_letter: dict[str, list[str]] = {}
    for name in names:
        if len(name) > depth:
            by_letter.setdefault(name[depth], []).append(name)
    letters = normal([(ord(letter), ord(letter)) for letter in by_letter])
    others = intersection(strings.PLAIN, complement(letters))
    parts = [f"{characters(others)} {strings.tail(rules)}"]
    if not any(len(name) == depth for name in names):
        parts.append('"\\u0022"')
    for letter, longer in by_letter.items():
        if intersection(normal([(ord(letter), ord(letter))]), strings.PLAIN):
            parts.append(f"{literal(letter)} {_leaving(rules, longer, depth + 1)}")
    return rules.add(any_of(parts))
