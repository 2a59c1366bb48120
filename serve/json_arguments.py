"""A call's arguments: as an object, for dialects that have no JSON text there, and whether they are whole."""

from typing import Any

import msgspec

from corymb.scheduler.messages import Finish
from corymb.serve.answer import Part


def arguments_of(call: Part) -> dict[str, Any]:
    """The object; arguments that were cut off or are no object count as none."""
    try:
        arguments = msgspec.json.decode(call.text)
    except (msgspec.DecodeError, RecursionError):
        return {}
    return arguments if isinstance(arguments, dict) else {}


def is_cut(call: Part, finish: Finish) -> bool:
    """Whether the answer broke off inside its last call, `call`: at a limit, at a stop string, or ended by somebody."""
    broke_off = finish.reason != "stop" or isinstance(finish.matched, str)
    return broke_off and not _is_json(call.text)


def _is_json(text: str) -> bool:
    try:
        msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError):
        return False
    return True
