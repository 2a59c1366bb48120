"""Chat messages as clients send them, made into what chat templates expect."""

import hashlib
import json
import re
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from corymb.serve.errors import ApiError, invalid, shown

MAX_MESSAGES = 4096
_MAX_PARTS = 1024
MAX_CALLS = 1024
_SHORT_ID = re.compile(r"[A-Za-z0-9]{9}")

Message = dict[str, Any]


def read_messages(param: str, value: object) -> list[Message]:
    """A conversation. Content is always text; null, parts and roles of other APIs are made uniform."""
    if not isinstance(value, list) or not value:
        raise invalid(param, f"must be a list of at least one message, not {shown(value)}.")
    if len(value) > MAX_MESSAGES:
        raise invalid(param, f"must hold at most {MAX_MESSAGES} messages, not {len(value)}.")
    return [_read_message(param, f"message {index}", item) for index, item in enumerate(value)]


def with_short_ids(messages: Sequence[Message]) -> list[Message]:
    """The same with ids of calls that are nine letters and digits: some templates refuse all others."""
    return [_with_short_ids(message) for message in messages]


def _with_short_ids(message: Message) -> Message:
    if "tool_call_id" in message:
        return message | {"tool_call_id": _short_id(message["tool_call_id"])}
    if "tool_calls" in message:
        calls = [call | {"id": _short_id(call["id"])} if "id" in call else call for call in message["tool_calls"]]
        return message | {"tool_calls": calls}
    return message


def _short_id(call_id: str) -> str:
    return (
        call_id if _SHORT_ID.fullmatch(call_id) else hashlib.sha256(call_id.encode("utf-8", "replace")).hexdigest()[:9]
    )


def _read_message(param: str, where: str, message: object) -> Message:
    if not isinstance(message, dict):
        raise _refusal(param, where, f"must be an object, not {shown(message)}")
    role = message.get("role")
    read = _READERS.get(role) if isinstance(role, str) else None
    if read is None:
        raise _refusal(param, where, f"has the role {shown(role)}; the roles are {', '.join(_READERS)}")
    result = read(param, where, message)
    name = message.get("name")
    if name is not None:
        result["name"] = _text(param, f"{where}: name", name)
    return result


def _read_plain(param: str, where: str, message: Message) -> Message:
    # Templates know no developer role; it is the later name of system.
    role = "system" if message["role"] == "developer" else message["role"]
    return {"role": role, "content": _content(param, where, message.get("content"))}


def _read_assistant(param: str, where: str, message: Message) -> Message:
    if message.get("audio") is not None:
        raise _refusal(param, where, "has audio; this server takes text only")
    content = message.get("content")
    if content is None:
        content = message.get("refusal")  # it is what was said
    result: Message = {"role": "assistant", "content": "" if content is None else _content(param, where, content)}
    reasoning = message.get("reasoning_content")
    if reasoning is not None:
        result["reasoning_content"] = _text(param, f"{where}: reasoning_content", reasoning)
    calls = message.get("tool_calls")
    older = message.get("function_call")
    if calls is None and older is not None:
        calls = [{"function": older}]
    if calls is not None:
        result["tool_calls"] = _read_calls(param, where, calls)
    return result


def _read_tool(param: str, where: str, message: Message) -> Message:
    content = message.get("content")
    # A function that gives nothing back is a result too.
    result = {"role": "tool", "content": "" if content is None else _content(param, where, content)}
    call_id = message.get("tool_call_id")
    if call_id is not None:
        result["tool_call_id"] = _text(param, f"{where}: tool_call_id", call_id)
    return result


_READERS: dict[str, Callable[[str, str, Message], Message]] = {
    "system": _read_plain,
    "developer": _read_plain,
    "user": _read_plain,
    "assistant": _read_assistant,
    "tool": _read_tool,
    "function": _read_tool,
}


def _content(param: str, where: str, content: object) -> str:
    if isinstance(content, str):
        return content
    if content is None:
        raise _refusal(param, where, "has no content")
    if not isinstance(content, list) or not 0 < len(content) <= _MAX_PARTS:
        raise _refusal(param, where, f"must have text or up to {_MAX_PARTS} parts as content, not {shown(content)}")
    return "".join(_part(param, where, part) for part in content)


def _part(param: str, where: str, part: object) -> str:
    kind = part.get("type") if isinstance(part, dict) else None
    if not isinstance(part, dict) or kind not in ("text", "refusal"):
        raise _refusal(param, where, f"has a part of type {shown(kind)}; this server takes text only")
    return _text(param, f"{where}: {kind} part", part.get(kind))


def _read_calls(param: str, where: str, calls: object) -> list[Message]:
    if not isinstance(calls, list) or len(calls) > MAX_CALLS:
        raise _refusal(param, where, f"must have a list of at most {MAX_CALLS} tool_calls, not {shown(calls)}")
    return [_read_call(param, where, call) for call in calls]


def _read_call(param: str, where: str, call: object) -> Message:
    function = call.get("function") if isinstance(call, dict) else None
    if not isinstance(call, dict) or not isinstance(function, dict):
        raise _refusal(param, where, "has a tool call that is no object with a `function` object")
    name = _text(param, f"{where}: name of the called function", function.get("name"))
    result: Message = {"type": "function", "function": {"name": name, "arguments": _arguments(param, where, function)}}
    if call.get("id") is not None:
        result["id"] = _text(param, f"{where}: id of the tool call", call["id"])
    return result


class Arguments(dict[str, Any]):
    """Arguments of a call: an object for templates that print its members or use `tojson`, JSON text for others.

    Some templates add the text to other text, some look up its keys: both are written for their own model's tools.
    """

    def __str__(self) -> str:
        return json.dumps(self, ensure_ascii=False)

    def __add__(self, other: str) -> str:
        return str(self) + other

    def __radd__(self, other: str) -> str:
        return other + str(self)


def _arguments(param: str, where: str, function: Message) -> Any:
    """Text that is no JSON object stays text."""
    arguments = function.get("arguments")
    if arguments is None or arguments == "":
        return Arguments()
    if isinstance(arguments, dict):
        return Arguments(arguments)
    text = _text(param, f"{where}: arguments of the called function", arguments)
    try:
        decoded = msgspec.json.decode(text)
    except (msgspec.DecodeError, msgspec.ValidationError, RecursionError):
        return text  # a model may have written it so; the next turn must still be possible
    return Arguments(decoded) if isinstance(decoded, dict) else text


def _text(param: str, what: str, value: object) -> str:
    if not isinstance(value, str):
        raise _refusal(param, what, f"must be a string, not {shown(value)}")
    return value


def _refusal(param: str, where: str, problem: str) -> ApiError:
    return ApiError("invalid_value", f"`{param}`: {where} {problem}.", param=param)
