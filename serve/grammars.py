"""What clients ask an answer to follow, in any dialect's words, as one `Wanted`."""

import functools
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from corymb.scheduler.messages import Grammar
from corymb.serve.body import MAX_DEPTH, is_too_deep
from corymb.serve.errors import ApiError, invalid, shown
from corymb.serve.fields import is_finite
from corymb.serve.patterns import BadPattern
from corymb.serve.rules import TooComplex, any_of, literal
from corymb.serve.schema_words import Unsupported
from corymb.serve.schemas import any_json_rules, schema_rules
from corymb.serve.spoken import SPACE
from corymb.serve.strings import may_begin_with_space, whole_answer
from corymb.serve.structural_tags import tag_text

MAX_TEXT_CHARS = 64 << 10  # of a pattern or of rules

Json = Mapping[str, Any]
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Wanted:
    """A grammar, and the field that asks for it by the client's own name: compiling it may still refuse it."""

    grammar: Grammar
    param: str
    spaced: bool = False  # an answer may begin with white space


def from_response_format(param: str, value: object) -> Wanted | None:
    """OpenAI's `response_format`; None for plain text. Raises ApiError."""
    kind = value.get("type") if isinstance(value, dict) else None
    if not isinstance(value, dict) or not isinstance(kind, str):
        raise invalid(param, f'must be an object with a `type`, as {{"type": "text"}}, not {shown(value)}.')
    if kind == "text":
        return None
    if kind == "json_object":
        # Not OpenAI's, but what llama.cpp and others take: it would be a pity to drop a schema.
        return any_json(param) if value.get("schema") is None else from_schema(f"{param}.schema", value["schema"])
    if kind == "json_schema":
        return from_schema(f"{param}.json_schema.schema", _named_schema(param, value))
    if kind == "structural_tag":
        return from_structural_tag(param, value)
    raise invalid(param, f"has the unknown type {shown(kind)}.")


def any_json(param: str) -> Wanted:
    """Any JSON object."""
    return Wanted(_any_json(), param)


@functools.cache
def _any_json() -> Grammar:
    return Grammar("json_object", any_json_rules())


def from_schema(param: str, schema: object) -> Wanted:
    """A JSON schema, as an object or as the JSON of one. Raises ApiError."""
    parsed = _parsed(param, schema)
    return Wanted(Grammar("json_schema", _checked(param, lambda: schema_rules(parsed))), param)


def from_structural_tag(param: str, tag: object) -> Wanted:
    """A structural tag, as an object or as the JSON of one. Raises ApiError."""
    parsed = _parsed(param, tag)
    return Wanted(Grammar("structural_tag", _checked(param, lambda: tag_text(parsed))), param, spaced=True)


def from_regex(param: str, pattern: object) -> Wanted:
    """A regular expression for the whole answer. Raises ApiError."""
    text = _text(param, pattern)
    rules, spaced = _checked(param, lambda: (whole_answer(text), may_begin_with_space(text)))
    return Wanted(Grammar("regex", rules, spells_end=True), param, spaced=spaced)


def from_ebnf(param: str, rules: object) -> Wanted:
    """A grammar in GBNF with a rule `root`. Raises ApiError."""
    return Wanted(Grammar("ebnf", _text(param, rules)), param, spaced=True)


def from_choices(param: str, choices: Sequence[str]) -> Wanted:
    """One of several strings, exactly."""
    rules = f"root ::= {any_of([literal(choice) for choice in choices])}\n"
    return Wanted(Grammar("ebnf", rules), param, spaced=any(choice.startswith(tuple(SPACE)) for choice in choices))


def _checked(param: str, make: Callable[[], T]) -> T:
    """What `make` makes; the reasons why it cannot become answers for the client."""
    try:
        return make()
    except Unsupported as error:
        raise ApiError("unsupported_schema", f"`{param}`: {error}.", param=param) from error
    except BadPattern as error:
        raise invalid(param, f"cannot be followed, {error}.") from error
    except TooComplex as error:
        raise ApiError("grammar_too_complex", f"`{param}` is too complex: {error}.", param=param) from error


def _named_schema(param: str, value: Json) -> object:
    named = value.get("json_schema")
    if not isinstance(named, dict) or "schema" not in named:
        raise invalid(param, 'of type json_schema must hold {"json_schema": {"name": …, "schema": {…}}}.')
    return named["schema"]


def _text(param: str, value: object) -> str:
    if not isinstance(value, str) or not value:
        raise invalid(param, f"must be a string that is not empty, not {shown(value)}.")
    if len(value) > MAX_TEXT_CHARS:
        message = f"`{param}` is too complex: it has {len(value):,} characters and {MAX_TEXT_CHARS:,} are allowed."
        raise ApiError("grammar_too_complex", message, param=param)
    return value


def _parsed(param: str, value: object) -> object:
    if isinstance(value, str):
        try:
            value = json.loads(_text(param, value))
        except (ValueError, RecursionError):
            raise invalid(param, "is not valid JSON.") from None
    if is_too_deep(value):
        message = f"`{param}` is too complex: it nests more than {MAX_DEPTH} lists and objects into each other."
        raise ApiError("grammar_too_complex", message, param=param)
    if not is_finite(value):
        raise invalid(param, "must not hold NaN, Infinity or a number beyond the range of a double.")
    return value
