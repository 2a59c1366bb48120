"""JSON schemas as grammars: what a grammar allows always validates, and what it cannot hold to is refused by name.

Properties come in the order of the schema. Where it does not speak of further properties beside those that it names,
or of items behind `prefixItems`, there are none. Spaces between tokens are one space, or a line's indent.
"""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from decimal import Decimal
from typing import Any
from urllib.parse import unquote

from corymb.serve import strings
from corymb.serve.patterns import BadPattern
from corymb.serve.ranges import BadBounds, Bound, integer_rule, multiple_rule, number_rule
from corymb.serve.rules import Rules, TooComplex, any_of, literal
from corymb.serve.schema_arrays import array_rule
from corymb.serve.schema_joins import all_apart, join, key_of, type_of, types_of
from corymb.serve.schema_objects import object_rule
from corymb.serve.schema_words import ANNOTATIONS, OF_STRINGS, TYPES, Schema, Unsupported, check_words, refuse

MAX_SCHEMA_CHARS = 64 << 10
MAX_SCHEMA_DEPTH = 64  # objects and lists inside each other, as the schema is written
MAX_DEPTH = 64  # of what is written and what its references lead to
MAX_ENUM_VALUES = 2_000
MAX_PROPERTIES = 1_000
MAX_DIVISOR = 64
MAX_JOINS = 2_000

_ASIDE = ANNOTATIONS | {"$ref", "allOf", "anyOf", "oneOf"}


def schema_rules(schema: object) -> str:
    """The grammar of the JSON texts that a schema allows. Raises Unsupported, TooComplex."""
    if not isinstance(schema, dict | bool):
        raise Unsupported("a schema is an object")
    check_size(schema)
    writer = Writer(schema)
    root = writer.value(schema, "")
    if root is None:
        raise Unsupported("no value at all is right for the schema")
    return writer.rules.text(root)


def any_json_rules() -> str:
    """The grammar of JSON objects."""
    writer = Writer(True)
    root = writer.value({"type": "object"}, "")
    assert root is not None, "there are objects"
    return writer.rules.text(root)


def check_size(schema: object, most: int = MAX_SCHEMA_CHARS) -> None:
    """Bounds the work before it begins. Raises TooComplex."""
    level: list[object] = [schema]
    for _ in range(MAX_SCHEMA_DEPTH):
        level = [inner for value in level for inner in _inside(value)]
        if not level:
            break
    else:
        raise TooComplex(f"it is nested more than {MAX_SCHEMA_DEPTH} deep")
    if (size := len(json.dumps(schema, ensure_ascii=False))) > most:
        raise TooComplex(f"it has {size:,} characters and {most:,} are allowed")


class Writer:
    """Writes the rules of one schema. A value that cannot be is None in the place of its rule."""

    def __init__(self, root: Schema | bool) -> None:
        self.rules = Rules()
        self._root = root
        self._by_reference: dict[str, str | None] = {}
        self._any: str | None = None
        self._strings: dict[tuple[str, int, int | None], str] = {}  # by pattern and lengths
        self._depth = 0
        self._following: tuple[str, ...] = ()  # references that are followed without a value in between
        self._num_joins = 0
        self._num_properties = 0

    def value(self, schema: Schema | bool, path: str) -> str | None:
        """The rule of a schema's values. Raises Unsupported, TooComplex."""
        if isinstance(schema, bool):
            return self.any_value() if schema else None
        check_words(schema, path)
        words = schema.keys() - ANNOTATIONS
        if words == {"$ref"}:
            return self._reference(schema["$ref"], path)
        if words == {"allOf"} and len(schema["allOf"]) == 1:
            return self.value(schema["allOf"][0], path)
        base: Schema | bool = {word: value for word, value in schema.items() if word not in _ASIDE}
        parts = list(schema.get("allOf", ()))
        if "$ref" in schema:
            parts.append(self._resolved(schema, path))
        for part in parts:
            base = self._join(base, self._flat(part, path), path)
        return self._options(base, schema, path)

    def inside(self, schema: Schema | bool, path: str) -> str | None:
        """The same for what stands inside an object or array: references may come round to it again."""
        before, self._following = self._following, ()
        with self._deeper():
            rule = self.value(schema, path)
        self._following = before
        return rule

    def any_value(self) -> str:
        """Any JSON value."""
        if self._any is None:
            self._any = self.rules.name()
            kinds = [self._of_type(kind, {}, "") for kind in TYPES if kind != "integer"]
            self.rules.define(self._any, any_of([rule for rule in kinds if rule is not None]))
        return self._any

    def space(self) -> str:
        """What may stand between tokens: bounded, so that an answer cannot run on in it."""
        return self.rules.add('"" | " " | "\\n" [ \\t]{0,20}')

    def count_property(self) -> None:
        """Raises TooComplex."""
        self._num_properties += 1
        if self._num_properties > MAX_PROPERTIES:
            raise TooComplex(f"it has more than {MAX_PROPERTIES:,} properties")

    @contextmanager
    def _deeper(self) -> Iterator[None]:
        """Bounds how far references lead, long before Python's own stack ends."""
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise TooComplex(f"its references are more than {MAX_DEPTH} deep")
        yield
        self._depth -= 1

    def _reference(self, reference: str, path: str) -> str | None:
        if reference in self._following:
            refuse("$ref", path, "refers to itself without a value in between")
        if reference not in self._by_reference:
            self._by_reference[reference] = name = self.rules.name()
            before, self._following = self._following, (*self._following, reference)
            rule = self.value(self._target(reference, path), reference.partition("#")[2] or "/")
            self._following = before
            if rule is None:
                self._by_reference[reference] = None
            # What referred to it meanwhile stands in rules that are not used; one without an end matches nothing.
            self.rules.define(name, rule or f'"x" {name}')
        return self._by_reference[reference]

    def _target(self, reference: str, path: str) -> Schema | bool:
        if reference != "#" and not reference.startswith("#/"):
            refuse("$ref", path, "must point into the schema itself, as '#/$defs/name'")
        found: Any = self._root
        for part in reference.split("/")[1:]:
            name = unquote(part).replace("~1", "/").replace("~0", "~")
            if isinstance(found, list) and name.isdigit() and int(name) < len(found):
                found = found[int(name)]
            elif isinstance(found, dict) and name in found:
                found = found[name]
            else:
                refuse("$ref", path, f"points to {reference[:100]!r}, which is not there")
        if not isinstance(found, dict | bool):
            refuse("$ref", path, "points to what is no schema")
        return found

    def _resolved(self, schema: Any, path: str) -> Schema | bool:
        """What a schema that is nothing but a reference refers to, or else the schema."""
        seen: set[str] = set()
        while isinstance(schema, dict) and "$ref" in schema:
            reference = schema["$ref"]
            if not isinstance(reference, str) or reference in seen:
                refuse("$ref", path, "refers to itself")
            seen.add(reference)
            rest = {word: value for word, value in schema.items() if word != "$ref" and word not in ANNOTATIONS}
            target = self._target(reference, path)
            if rest and schema is not target and len(seen) > 1:
                return self._join(self._flat(target, path), rest, path)
            schema = target
        found: Schema | bool = schema
        return found

    def _flat(self, schema: Schema | bool, path: str) -> Schema | bool:
        """The schema with its references and `allOf` joined into it."""
        if isinstance(schema, bool):
            return schema
        check_words(schema, path)
        flat: Schema | bool = {word: value for word, value in schema.items() if word not in ("$ref", "allOf")}
        with self._deeper():
            for part in schema.get("allOf", ()):
                flat = self._join(flat, self._flat(part, path), path)
            if "$ref" in schema:
                flat = self._join(flat, self._flat(self._resolved({"$ref": schema["$ref"]}, path), path), path)
        return flat

    def _join(self, one: Schema | bool, other: Schema | bool, path: str) -> Schema | bool:
        self._num_joins += 1
        if self._num_joins > MAX_JOINS:
            raise TooComplex(f"more than {MAX_JOINS:,} schemas must be joined")
        return join(one, other, path)

    def _options(self, base: Schema | bool, schema: Schema, path: str) -> str | None:
        """With `anyOf` and `oneOf`, of the schema itself and of what was joined into it."""
        choices = [(word, schema[word]) for word in ("anyOf", "oneOf") if word in schema]
        if isinstance(base, dict):
            choices += [(word, base[word]) for word in ("anyOf", "oneOf") if word in base]
            base = {word: value for word, value in base.items() if word not in ("anyOf", "oneOf")}
        if not choices:
            return self._plain(base, path)
        word, options = choices[0]
        rest: Schema = dict(choices[1:])
        if len(rest) < len(choices) - 1:
            refuse(word, path, "is said twice, and both cannot be followed at once")
        if word == "oneOf":
            self._check_apart([self._join(base, self._flat(option, path), path) for option in options], path)
        with self._deeper():
            if base == {} and not rest:
                rules = [self.value(option, path) for option in options]  # references may come round to it again
            else:
                joined = [self._join(base, self._flat(option, path), path) for option in options]
                rules = [self._options(option, rest, path) for option in joined]
        found = list(dict.fromkeys(rule for rule in rules if rule is not None))
        return self.rules.add(any_of(found)) if found else None

    def _check_apart(self, options: list[Schema | bool], path: str) -> None:
        real = [option for option in options if option is not False]
        found = [option for option in real if option is not True]
        takes_all = len(found) < len(real) and len(real) > 1
        if takes_all or not all_apart(found, lambda each: self._flat(each, path)):
            refuse("oneOf", path, "has options that may hold at once: give each a const of its own, or use anyOf")

    def _plain(self, schema: Schema | bool, path: str) -> str | None:
        """A schema without references and options."""
        if isinstance(schema, bool):
            return self.any_value() if schema else None
        if "const" in schema or "enum" in schema:
            return self._values(schema, path)
        if not schema:
            return self.any_value()
        kinds = types_of(schema)
        if "number" in kinds:
            kinds -= {"integer"}
        rules = [self._of_type(kind, schema, path) for kind in TYPES if kind in kinds]
        found = [rule for rule in rules if rule is not None]
        return any_of(found) if found else None

    def _values(self, schema: Schema, path: str) -> str | None:
        """One of given values."""
        joined = join(schema, {}, path)
        assert isinstance(joined, dict), "it was joined with what says nothing"
        beside = joined.keys() - {"enum", "type"}
        if beside:
            refuse(min(beside), path, "cannot be followed beside enum or const")
        if len(joined["enum"]) > MAX_ENUM_VALUES:
            raise TooComplex(f"an enum has more than {MAX_ENUM_VALUES:,} values")
        kinds = types_of({"type": joined["type"]}) if "type" in joined else frozenset(TYPES)
        if "number" in kinds:
            kinds |= {"integer"}
        values = {key_of(value): value for value in joined["enum"] if type_of(value) in kinds}
        texts = [json.dumps(value, ensure_ascii=False) for value in values.values()]
        return self.rules.add(any_of([literal(text) for text in texts])) if texts else None

    def _of_type(self, kind: str, schema: Schema, path: str) -> str | None:
        if kind == "object":
            return object_rule(self, schema, path)
        if kind == "array":
            return array_rule(self, schema, path)
        if kind == "string":
            return self._string(schema, path)
        if kind in ("number", "integer"):
            return self._number(kind, schema, path)
        return self.rules.add('"null"' if kind == "null" else '"true" | "false"')

    def _string(self, schema: Schema, path: str) -> str | None:
        words = schema.keys() & OF_STRINGS
        least, most = int(schema.get("minLength", 0)), _count(schema.get("maxLength"))
        if most is not None and least > most:
            return None
        if {"pattern", "format"} <= words:
            refuse("pattern", path, "cannot be followed beside format")
        if "format" in words and schema["format"] not in strings.FORMATS:
            refuse("format", path, f"{schema['format'][:40]!r} cannot be enforced")
        try:
            if "pattern" in words:
                return self._matching(schema["pattern"], least, most)
            if "format" in words:
                return self._matching(f"^{strings.FORMATS[schema['format']]}$", least, most)
        except BadPattern as error:
            refuse("pattern" if "pattern" in words else "format", path, f"cannot be followed, {error}")
        if least or most is not None:
            return strings.counted_string(self.rules, least, most)
        return strings.json_string(self.rules)

    def _matching(self, pattern: str, least: int, most: int | None) -> str:
        if (pattern, least, most) not in self._strings:
            self._strings[pattern, least, most] = strings.matching_string(self.rules, pattern, least, most)
        return self._strings[pattern, least, most]

    def _number(self, kind: str, schema: Schema, path: str) -> str | None:
        low = _tighter(schema.get("minimum"), schema.get("exclusiveMinimum"), max)
        high = _tighter(schema.get("maximum"), schema.get("exclusiveMaximum"), min)
        divisor = schema.get("multipleOf", 1 if kind == "integer" else None)
        if divisor is not None and (divisor != int(divisor) or divisor > MAX_DIVISOR):
            refuse("multipleOf", path, f"cannot be enforced: use a whole number of at most {MAX_DIVISOR}")
        try:
            if divisor is None:
                return number_rule(self.rules, low, high)
            if divisor == 1:
                return integer_rule(self.rules, low, high)
        except BadBounds as error:
            refuse("minimum", path, f"cannot be followed: {error}")
        if low is not None or high is not None:
            refuse("multipleOf", path, "cannot be followed beside bounds")
        return multiple_rule(self.rules, int(divisor))


def _count(value: float | None) -> int | None:
    return None if value is None else int(value)


def _tighter(closed: float | None, opened: float | None, pick: Any) -> Bound | None:
    """The bound that both give: the one further in."""
    values = [Decimal(str(value)) for value in (closed, opened) if value is not None]
    if not values:
        return None
    value = pick(values)
    return Bound(value, open=opened is not None and value == Decimal(str(opened)))


def _inside(value: object) -> Iterator[object]:
    if isinstance(value, dict):
        yield from value.values()
    elif isinstance(value, list):
        yield from value
