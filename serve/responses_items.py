"""Input items of OpenAI's Responses API as messages of chat completions."""

from typing import Any

from corymb.serve.errors import ApiError, invalid, shown

Item = dict[str, Any]
MAX_ITEMS = 4096
MAX_PARTS = 1024
ROLES = ("user", "assistant", "system", "developer")
_TEXT_PARTS = ("input_text", "output_text", "text", "reasoning_text", "summary_text", "refusal")


def read_items(value: object) -> list[Item]:
    """Text, or a list of items, as items of a known type."""
    if isinstance(value, str):
        return [{"type": "message", "role": "user", "content": value}]
    if not isinstance(value, list) or not 0 < len(value) <= MAX_ITEMS:
        raise invalid("input", f"must be text or a list of 1 to {MAX_ITEMS} items, not {shown(value)}.")
    return [_read(f"item {number}", item) for number, item in enumerate(value)]


def _read(where: str, item: object) -> Item:
    if not isinstance(item, dict):
        raise _refusal(where, f"must be an object, not {shown(item)}")
    kind = item.get("type", "message")
    if kind not in ("message", "function_call", "function_call_output", "reasoning"):
        raise _refusal(where, f"has the type {shown(kind)}, which this server does not take")
    return {**item, "type": kind}


def chat_messages(items: list[Item], instructions: str | None) -> list[Item]:
    """A conversation, with the instructions in front."""
    chat: list[Item] = [] if instructions is None else [{"role": "system", "content": instructions}]
    for number, item in enumerate(items):
        where = f"item {number}"
        match item["type"]:
            case "reasoning":
                _add_reasoning(chat, where, item)
            case "function_call":
                _add_call(chat, where, item)
            case "function_call_output":
                output = _text(where, item.get("output"))
                chat.append({"role": "tool", "tool_call_id": _string(where, item, "call_id"), "content": output})
            case _:
                _add_message(chat, where, item)
    return chat


def _add_reasoning(chat: list[Item], where: str, item: Item) -> None:
    text, summary = (_thought(where, item.get(name)) for name in ("content", "summary"))
    text = text or summary
    if text:
        chat.append({"role": "assistant", "content": "", "reasoning_content": text})


def _thought(where: str, parts: object) -> str:
    return "" if parts is None or parts == [] else _text(where, parts)


def _add_message(chat: list[Item], where: str, item: Item) -> None:
    if item.get("role") not in ROLES:
        raise _refusal(where, f"has the role {shown(item.get('role'))}; the roles are {', '.join(ROLES)}")
    message = {"role": item["role"], "content": _text(where, item.get("content"))}
    if message["role"] == "assistant" and _is_only_reasoning(chat):
        chat[-1]["content"] = message["content"]
    else:
        chat.append(message)


def _is_only_reasoning(chat: list[Item]) -> bool:
    last = chat[-1] if chat else {}
    return "reasoning_content" in last and not last["content"] and "tool_calls" not in last


def _add_call(chat: list[Item], where: str, item: Item) -> None:
    """Calls belong to what the assistant said before them."""
    if not chat or chat[-1].get("role") != "assistant":
        chat.append({"role": "assistant", "content": ""})
    function = {"name": _string(where, item, "name"), "arguments": _string(where, item, "arguments")}
    call = {"id": _string(where, item, "call_id"), "type": "function", "function": function}
    chat[-1].setdefault("tool_calls", []).append(call)


def _text(where: str, content: object) -> str:
    """Text, or parts of text joined."""
    if isinstance(content, str):
        return content
    if not isinstance(content, list) or not 0 < len(content) <= MAX_PARTS:
        raise _refusal(where, f"must have text or 1 to {MAX_PARTS} parts, not {shown(content)}")
    return "".join([_part(where, part) for part in content])


def _part(where: str, part: object) -> str:
    kind = part.get("type") if isinstance(part, dict) else None
    if not isinstance(part, dict) or kind not in _TEXT_PARTS:
        raise _refusal(where, f"has a part of type {shown(kind)}, and this server takes text only")
    return _string(where, part, "refusal" if kind == "refusal" else "text")


def _string(where: str, item: Item, name: str) -> str:
    value = item.get(name)
    if not isinstance(value, str):
        raise _refusal(where, f"must have a string as `{name}`, not {shown(value)}")
    return value


def _refusal(where: str, problem: str) -> ApiError:
    return ApiError("invalid_value", f"`input`: {where} {problem}.", param="input")
