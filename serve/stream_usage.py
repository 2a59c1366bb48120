"""`stream_options`: when a stream tells its token counts."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from corymb.serve.call import Call
from corymb.serve.errors import invalid, shown
from corymb.serve.requests import name_ignored_members
from corymb.serve.sse import event
from corymb.serve.usage import Usage

_MEMBERS = ("include_usage", "continuous_usage_stats")


@dataclass(frozen=True, slots=True)
class StreamUsage:
    """`at_end`: a chunk of its own before [DONE]. `always`: on every chunk."""

    at_end: bool = False
    always: bool = False

    def on_chunk(self, usage: Usage) -> bytes:
        """The member that every chunk carries, with a comma before it; may be empty."""
        if self.always:
            return b',"usage":' + usage.json()
        return b',"usage":null' if self.at_end else b""

    def closing(self, head: bytes, usage: Usage) -> bytes:
        """The chunk before [DONE]; may be empty. `head`: the members that every chunk starts with."""
        return event(b'%b,"choices":[],"usage":%b}' % (head, usage.json())) if self.at_end else b""


def stream_usage(call: Call, body: Mapping[str, Any], values: Mapping[str, Any]) -> StreamUsage:
    """From checked values. What has no effect is named: members that are unknown, or all of it without a stream."""
    name_ignored_members(call, body, {"stream_options": _MEMBERS})
    if "stream_options" in values and not values.get("stream"):
        call.ignored["stream_options"] = None
    usage: StreamUsage = values.get("stream_options", StreamUsage())
    return usage


def read_stream_options(param: str, value: object) -> StreamUsage:
    """The object a client sends."""
    if not isinstance(value, dict):
        raise invalid(param, f"must be an object, not {shown(value)}.")
    always = _flag(param, value, "continuous_usage_stats")
    return StreamUsage(at_end=_flag(param, value, "include_usage"), always=always)


def _flag(param: str, options: dict[str, Any], name: str) -> bool:
    value = options.get(name)
    if value is not None and not isinstance(value, bool):
        raise invalid(f"{param}.{name}", f"must be true or false, not {shown(value)}.")
    return bool(value)
