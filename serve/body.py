"""JSON bodies: strict, bounded, and never a 500."""

import json
import re
from collections.abc import Iterable
from typing import Any

import msgspec

from corymb.serve.call import Call
from corymb.serve.errors import ApiError, invalid
from corymb.serve.fields import is_finite
from corymb.serve.settings import HttpSettings

MAX_DEPTH = 256  # far below the limit of the JSON encoder: what was read can be written, with a few levels around it
_LENIENT_MAX_BYTES = 1 << 20
_NOT_FINITE = re.compile(rb"NaN|Infinity|[eE]\+?[0-9]{3}")


async def read_json(
    call: Call, settings: HttpSettings, *, optional: bool = False, declared: bool = True
) -> dict[str, Any]:
    """The body as a JSON object. `optional`: no body at all is an empty object.

    `declared`: clients must say that it is JSON. Where they need not, web pages must: only what a page declares as JSON
    is kept from other origins by its browser.
    """
    body = await call.read_body(settings.max_body_bytes, settings.body_timeout_s)
    if optional and not body:
        return {}
    media_type = call.header(b"content-type").split(b";")[0].strip().lower()
    if media_type != b"application/json" and (declared or call.header(b"origin")):
        raise ApiError("unsupported_media_type", "Send the body with `Content-Type: application/json`.")
    return parse(body)


def parse(body: bytes) -> dict[str, Any]:
    """Decodes a JSON object; NaN, Infinity and numbers beyond a double are errors that name their field."""
    try:
        value = msgspec.json.decode(body)
    except (msgspec.DecodeError, msgspec.ValidationError, RecursionError, UnicodeError):
        raise _explain(body) from None
    if not isinstance(value, dict):
        raise ApiError("invalid_json", "The body must be a JSON object.")
    if body.count(b"[") + body.count(b"{") > MAX_DEPTH and is_too_deep(value):
        raise ApiError("invalid_json", f"The body nests more than {MAX_DEPTH} lists and objects into each other.")
    return value


def is_too_deep(value: object) -> bool:
    """More than MAX_DEPTH lists and objects stand inside each other."""
    level = [value]
    for _ in range(MAX_DEPTH):
        level = [child for item in level for child in _children(item) if isinstance(child, dict | list)]
        if not level:
            return False
    return True


def _children(item: object) -> Iterable[object]:
    if isinstance(item, dict):
        return item.values()
    return item if isinstance(item, list) else ()


def _explain(body: bytes) -> ApiError:
    """Says which field holds a number that JSON cannot, or that the body is no JSON."""
    if len(body) <= _LENIENT_MAX_BYTES and _NOT_FINITE.search(body):
        try:
            value = json.loads(body)
            name = _not_finite(value)
        except (ValueError, RecursionError):
            name = ""
        if name:
            return invalid(name[:100], "must not hold NaN, Infinity or a number beyond the range of a double.")
    return ApiError("invalid_json", "The body is not valid JSON (RFC 8259, UTF-8).")


def _not_finite(value: object) -> str:
    """The dotted name of the first field that holds such a number; nothing where there is none."""
    if isinstance(value, list):
        return next((name for name in map(_not_finite, value) if name), "")
    if not isinstance(value, dict):
        return ""
    for name, item in value.items():
        if not is_finite(item):
            inner = _not_finite(item)
            # A key that is no field's name, as the token id of a bias, belongs to its field.
            return f"{name}.{inner}" if inner.partition(".")[0].isidentifier() else str(name)
    return ""
