"""What clients ask an answer to follow, in any dialect's words, as one `Grammar`."""

import functools
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from corymb.scheduler.messages import Grammar
from corymb.serve.errors import ApiError, invalid, shown
from corymb.serve.fields import is_finite
from corymb.serve.patterns import BadPattern
from corymb.serve.rules import TooComplex, any_of, literal
from corymb.serve.schema_words import Unsupported
from corymb.serve.schemas import any_json_rules, schema_rules
from corymb.serve.strings import whole_answer
from corymb.serve.structural_tags import tag_text

MAX_TEXT_CHARS = 64 << 10  # of a pattern or of rules

Json = Mapping[str, Any]
T = TypeVar("T")


def from_response_format(param: str, value: object) -> Grammar | None:
    """OpenAI's `response_format`; None for plain text. Raises ApiError."""
    kind = value.get("type") if isinstance(value, dict) else None
    if not isinstance(value, dict) or not isinstance(kind, str):
        raise invalid(param, f'must be an object with a `type`, as {{"type": "text"}}, not {shown(value)}.')
    if kind == "text":
        return None
    if kind == "json_object":
        return any_json()
    if kind == "json_schema":
        return from_schema(f"{param}.json_schema.schema", _named_schema(param, value))
    if kind == "structural_tag":
        return from_structural_tag(param, value)
    raise invalid(param, f"has the unknown type {shown(kind)}.")


@functools.cache
def any_json() -> Grammar:
    """Any JSON object."""
    return Grammar("json_object", any_json_rules())


def from_schema(param: str, schema: object) -> Grammar:
    """A JSON schema, as an object or as the JSON of one. Raises ApiError."""
    parsed = _parsed(param, schema)
    return Grammar("json_schema", _checked(param, lambda: schema_rules(parsed)))


def from_structural_tag(param: str, tag: object) -> Grammar:
    """A structural tag, as an object or as the JSON of one. Raises ApiError."""
    parsed = _parsed(param, tag)
    return Grammar("structural_tag", _checked(param, lambda: tag_text(parsed)))


def from_regex(param: str, pattern: object) -> Grammar:
    """A regular expression for the whole answer. Raises ApiError."""
    text = _text(param, pattern)
    return Grammar("regex", _checked(param, lambda: whole_answer(text)))


def from_ebnf(param: str, rules: object) -> Grammar:
    """A grammar in GBNF with a rule `root`. Raises ApiError."""
    return Grammar("ebnf", _text(param, rules))


def from_choices(choices: Sequence[str]) -> Grammar:
    """One of several strings, exactly."""
    return Grammar("ebnf", f"root ::= {any_of([literal(choice) for choice in choices])}\n")


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
    if not is_finite(value):
        raise invalid(param, "must not hold NaN, Infinity or a number beyond the range of a double.")
    return value
