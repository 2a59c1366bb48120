"""Readers of single JSON values: each gives the value within its bounds or says what would be right."""

import dataclasses
import functools
import math
from collections.abc import Callable, Mapping
from typing import Annotated, Any, Literal

import msgspec

from corymb.serve.errors import ApiError, invalid, shown

Reader = Callable[[str, object], object]  # (name for the error, JSON value) -> checked value
Treatment = Literal["honoured", "refused", "ignored"]


@dataclasses.dataclass(frozen=True, slots=True)
class Field:
    """One field of a request body. `read` is None where any value passes, as for fields that are ignored."""

    name: str
    accepts: str  # for the table in the documentation
    read: Reader | None
    treatment: Treatment = "honoured"
    # The same for programs, as a JSON Schema: empty takes anything. Null, which means "not set", always passes too.
    schema: Mapping[str, Any] = dataclasses.field(default_factory=dict)


def translated(name: str, accepts: str) -> Field:
    """A field of another dialect: its value is checked where it has become one of chat completions."""
    return Field(name, accepts, lambda _, value: value)


def integer(name: str, low: int, high: int) -> Field:
    """A whole number within [low, high]. `16.0` is one, `true` is not."""

    def read(param: str, value: object) -> int:
        return read_integer(param, value, low, high)

    return Field(name, f"integer, {low} to {high}", read, schema={"type": "integer", "minimum": low, "maximum": high})


def read_integer(param: str, value: object, low: int, high: int) -> int:
    """A whole number within [low, high]."""
    if isinstance(value, float) and value.is_integer() and abs(value) < 2**53:
        value = int(value)
    if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
        raise invalid(param, f"must be an integer from {low} to {high}, not {shown(value)}.")
    return value


def read_numeral(param: str, given: str | None, default: int, most: int) -> int:
    """A whole number from 1 to `most` as a query spells it; `default` where it does not."""
    if given is None:
        return default
    if not (given.isascii() and given.isdigit() and len(given) < 10 and 1 <= int(given) <= most):
        raise invalid(param, f"must be a whole number from 1 to {most:,}, not {shown(given)}.")
    return int(given)


def number(name: str, low: float, high: float, *, above: bool = False) -> Field:
    """A finite number within [low, high], or within (low, high] when `above`."""
    bounds = f"{'above' if above else 'from'} {low:g} {'and at most' if above else 'to'} {high:g}"

    def read(param: str, value: object) -> float:
        real = isinstance(value, int | float) and not isinstance(value, bool)
        # One chained comparison: it is false for NaN too.
        if not real or not low <= value <= high or (above and value == low):  # type: ignore[operator]
            raise invalid(param, f"must be a number {bounds}, not {shown(value)}.")
        return float(value)  # type: ignore[arg-type]

    lowest = "exclusiveMinimum" if above else "minimum"
    return Field(name, f"number, {bounds}", read, schema={"type": "number", lowest: low, "maximum": high})


def boolean(name: str) -> Field:
    """true or false."""

    def read(param: str, value: object) -> bool:
        if not isinstance(value, bool):
            raise invalid(param, f"must be true or false, not {shown(value)}.")
        return value

    return Field(name, "boolean", read, schema={"type": "boolean"})


def string(name: str, max_chars: int, *, min_chars: int = 0) -> Field:
    """Text of bounded length."""

    def read(param: str, value: object) -> str:
        return read_string(param, value, max_chars, min_chars=min_chars)

    schema = {"type": "string", "minLength": min_chars, "maxLength": max_chars}
    return Field(name, f"string of at most {max_chars} characters", read, schema=schema)


def read_string(param: str, value: object, max_chars: int, *, min_chars: int = 0) -> str:
    """Text of bounded length."""
    if not isinstance(value, str):
        raise invalid(param, f"must be a string, not {shown(value)}.")
    if not min_chars <= len(value) <= max_chars:
        raise invalid(param, f"must have {min_chars} to {max_chars} characters, not {len(value)}.")
    return value


def strings(name: str, max_items: int, max_chars: int, *, max_total: int) -> Field:
    """One string or a list of them, none of them empty and all of them together of at most `max_total` characters."""

    def read(param: str, value: object) -> tuple[str, ...]:
        items = value if isinstance(value, list) else [value]
        if len(items) > max_items:
            raise invalid(param, f"must have at most {max_items} entries, not {len(items)}.")
        texts = tuple(read_string(param, item, max_chars, min_chars=1) for item in items)
        if (total := sum(map(len, texts))) > max_total:
            raise invalid(param, f"must have at most {max_total} characters in all, not {total}.")
        return texts

    about = f"string or list of at most {max_items}, 1 to {max_chars} characters each, {max_total} in all"
    one = {"type": "string", "minLength": 1, "maxLength": max_chars}
    return Field(name, about, read, schema={"anyOf": [one, {"type": "array", "items": one, "maxItems": max_items}]})


def token_ids(name: str, vocab_size: int, max_items: int) -> Field:
    """A list of token ids of this model."""

    def read(param: str, value: object) -> tuple[int, ...]:
        if not isinstance(value, list) or len(value) > max_items:
            raise invalid(param, f"must be a list of at most {max_items} token ids, not {shown(value)}.")
        return tuple(read_token_ids(param, value, vocab_size))

    schema = {"type": "array", "items": token_id_schema(vocab_size), "maxItems": max_items}
    return Field(name, f"list of at most {max_items} token ids", read, schema=schema)


def token_id_schema(vocab_size: int) -> Mapping[str, Any]:
    """One token id of this model, as a JSON Schema."""
    return {"type": "integer", "minimum": 0, "maximum": vocab_size - 1}


def read_token_ids(param: str, value: list[object], vocab_size: int) -> list[int]:
    """Checks every id of a list: they end as indices on the device."""
    try:
        # Compiled, for lists as long as a body can hold. Strict: no booleans, no floats.
        token_ids: list[int] = msgspec.convert(value, _ids_below(vocab_size))
    except msgspec.ValidationError:
        token_ids = [_read_token_id(param, item, vocab_size) for item in value]
    return token_ids


def _read_token_id(param: str, value: object, vocab_size: int) -> int:
    token_id = int(value) if isinstance(value, float) and value.is_integer() else value
    if not isinstance(token_id, int) or isinstance(value, bool) or not 0 <= token_id < vocab_size:
        raise invalid(param, f"must hold token ids from 0 to {vocab_size - 1}, not {shown(value)}.")
    return token_id


@functools.cache
def _ids_below(vocab_size: int) -> Any:
    return list[Annotated[int, msgspec.Meta(ge=0, lt=vocab_size)]]


def logit_bias(name: str, vocab_size: int, max_items: int) -> Field:
    """An object of token id to bias."""
    bias = number(name, -100, 100).read
    assert bias is not None

    def read(param: str, value: object) -> dict[int, float]:
        if not isinstance(value, dict) or len(value) > max_items:
            raise invalid(param, f"must be an object of at most {max_items} token ids, not {shown(value)}.")
        return {_bias_id(param, key, vocab_size): float(bias(param, item)) for key, item in value.items()}  # type: ignore[arg-type]

    schema = {
        "type": "object",
        "propertyNames": {"pattern": f"^(?:{numerals_below(vocab_size)})$"},
        "additionalProperties": {"type": "number", "minimum": -100, "maximum": 100},
        "maxProperties": max_items,
    }
    return Field(name, f"object of at most {max_items} token ids to numbers from -100 to 100", read, schema=schema)


def _bias_id(param: str, key: str, vocab_size: int) -> int:
    token_id = int(key) if key.isascii() and key.isdigit() and len(key) < 10 else -1
    if not 0 <= token_id < vocab_size or str(token_id) != key:
        raise invalid(param, f"must have token ids from 0 to {vocab_size - 1} as keys, not {shown(key)}.")
    return token_id


def numerals_below(limit: int) -> str:
    """A regular expression for the decimal numerals of 0 to `limit` - 1, without leading zeros."""
    last = str(limit - 1)
    shorter = ["[0-9]", *(f"[1-9][0-9]{{{more}}}" for more in range(1, len(last) - 1))] if len(last) > 1 else []
    below = []
    for at, digit in enumerate(last):
        low, high = int(at == 0 and len(last) > 1), int(digit) - 1
        if low <= high:
            below.append(f"{last[:at]}[{low}-{high}][0-9]{{{len(last) - at - 1}}}")
    return "|".join([*shorter, *below, last])


def refused(name: str, why: str, *neutral: object) -> Field:
    """A field we know and cannot honour: only its neutral values pass, so nothing is silently dropped."""

    def read(param: str, value: object) -> None:
        if not any(type(value) is type(item) and value == item for item in neutral):
            raise ApiError("unsupported_parameter", f"`{param}` is not supported: {why}.", param=param)

    accepts = f"refused ({why})"
    if neutral:
        accepts += "; passes: " + ", ".join(_spelled(item) for item in neutral)
    return Field(name, accepts, read, "refused", {"enum": list(neutral)} if neutral else {"type": "null"})


def ignored(name: str, why: str) -> Field:
    """A field that cannot change an answer; the response header names it."""
    return Field(name, why, None, "ignored")


def inert(field: Field, why: str) -> Field:
    """A field that this server's configuration leaves without effect: still checked, but named as ignored."""
    return Field(field.name, f"{field.accepts}; {why}", field.read, "ignored", field.schema)


def _spelled(value: object) -> str:
    return {True: "true", False: "false"}.get(value, str(value)) if isinstance(value, bool) else ascii(value)


def is_finite(value: object) -> bool:
    """False for NaN and the infinities that lenient JSON may hold, at any depth."""
    if isinstance(value, float):
        return math.isfinite(value)
    if isinstance(value, dict):
        return all(is_finite(item) for item in value.values())
    return not isinstance(value, list) or all(is_finite(item) for item in value)
