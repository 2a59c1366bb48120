"""The arrays of a schema."""

from typing import TYPE_CHECKING

from corymb.serve.schema_words import Schema, refuse

if TYPE_CHECKING:
    from corymb.serve.schemas import Writer

MAX_UNROLLED = 64  # items that are counted by a rule each: several times faster to follow than a counted repetition


def array_rule(writer: "Writer", schema: Schema, path: str) -> str | None:
    """Its arrays; None where there are none."""
    least, most = int(schema.get("minItems", 0)), schema.get("maxItems")
    first = [
        writer.inside(inner, f"{path}/prefixItems/{number}")
        for number, inner in enumerate(schema.get("prefixItems", ()))
    ]
    rest = _rest(writer, schema, path, least, len(first))
    if rest is None:
        most = len(first) if most is None else min(most, len(first))
    if None in first:
        most = first.index(None) if most is None else min(most, first.index(None))
    if most is not None and least > most:
        return None
    if schema.get("uniqueItems") and (most is None or most > 1):
        refuse("uniqueItems", path)
    known = [rule for rule in first if rule is not None][: None if most is None else int(most)]
    return _written(writer, known, rest, least, None if most is None else int(most))


def _rest(writer: "Writer", schema: Schema, path: str, least: int, num_first: int) -> str | None:
    """What follows the first items; None for nothing."""
    inner = schema.get("items", least > num_first or not num_first)
    if schema.get("unevaluatedItems", True) is not True:
        if schema["unevaluatedItems"] is not False or ("items" in schema and inner is not False):
            refuse("unevaluatedItems", path, "can be enforced only as false and without items")
        inner = False
    return writer.inside(inner, f"{path}/items")


def _written(writer: "Writer", first: list[str], rest: str | None, least: int, most: int | None) -> str:
    rules, space = writer.rules, writer.space()
    # Items from number i on, each behind a comma but the first; from the last one back.
    if rest is None or (most is not None and most <= len(first)):
        behind = '""'
    else:
        behind = _more(writer, rest, max(least - len(first), 0), None if most is None else most - len(first))
        if not first:
            return _any_number(writer, rest, least, most)
    for number in range(len(first) - 1, 0, -1):
        item = f'"," {space} {first[number]} {behind}'
        behind = rules.add(item if number < least else f'"" | {item}')
    full = f'"[" {space} {first[0]} {behind} {space} "]"' if first else f'"[" {space} "]"'
    return rules.add(full if least or not first else f'{full} | "[" {space} "]"')


def _any_number(writer: "Writer", item: str, least: int, most: int | None) -> str:
    """Items that are all alike."""
    rules, space = writer.rules, writer.space()
    behind = _more(writer, item, max(least - 1, 0), None if most is None else most - 1)
    full = f'{item} {behind} {space} "]"'
    return rules.add(f'"[" {space} {full}' if least else f'"[" {space} ({full} | "]")')


def _more(writer: "Writer", item: str, least: int, most: int | None) -> str:
    """`least` to `most` further items, each behind a comma."""
    rules, further = writer.rules, f'"," {writer.space()} {item}'
    if most is None:
        behind = rules.add_recursive(lambda name: f'"" | {further} {name}')
        counted, first = least, behind
    else:
        counted, first = most, '""'
    if counted > MAX_UNROLLED:
        return rules.add(f"({further}){{{least},{'' if most is None else most}}}")
    for number in range(counted, 0, -1):
        following = f"{further} {first}"
        first = rules.add(following if number <= least else f'"" | {following}')
    return first
