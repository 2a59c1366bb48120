"""A call's arguments as an object, for dialects that have no JSON text there."""

from typing import Any

import msgspec

from corymb.serve.answer import Part


def arguments_of(call: Part) -> dict[str, Any]:
    """The object; arguments that were cut off or are no object count as none."""
    try:
        arguments = msgspec.json.decode(call.text)
    except (msgspec.DecodeError, RecursionError):
        return {}
    return arguments if isinstance(arguments, dict) else {}
