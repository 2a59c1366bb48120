"""Messages and content blocks of Anthropic's API as messages of chat completions."""

from typing import Any

from corymb.serve.errors import ApiError, invalid, shown
from corymb.serve.messages import MAX_CALLS, MAX_MESSAGES

Block = dict[str, Any]
MAX_BLOCKS = MAX_CALLS


def chat_messages(messages: object, system: object) -> list[Block]:
    """A conversation, with the system prompt in front."""
    if not isinstance(messages, list) or not 0 < len(messages) <= MAX_MESSAGES:
        raise invalid("messages", f"must be a list of 1 to {MAX_MESSAGES} messages, not {shown(messages)}.")
    chat: list[Block] = []
    if system is not None:
        chat.append({"role": "system", "content": _text_of("system", "the system prompt", system)})
    for number, message in enumerate(messages):
        chat += _message(f"message {number}", message)
    if chat[-1]["role"] == "assistant":
        raise invalid("messages", "must not end with the assistant: an answer that was begun is not continued here.")
    return chat


def _message(where: str, message: object) -> list[Block]:
    role = message.get("role") if isinstance(message, dict) else None
    if not isinstance(message, dict) or role not in ("user", "assistant", "system"):
        raise _refusal(where, f"must be an object with the role user, assistant or system, not {shown(role)}")
    content = message.get("content")
    if role == "system" or isinstance(content, str):
        return [{"role": role, "content": _text_of("messages", where, content)}]
    blocks = _blocks("messages", where, content)
    return [_assistant(where, blocks)] if role == "assistant" else _user(where, blocks)


def _assistant(where: str, blocks: list[Block]) -> Block:
    message: Block = {"role": "assistant", "content": ""}
    for number, block in enumerate(blocks):
        at = f"{where}, block {number}"
        match block["type"]:
            case "text":
                message["content"] += _string(at, block, "text")
            case "thinking":
                message["reasoning_content"] = message.get("reasoning_content", "") + _string(at, block, "thinking")
            case "redacted_thinking":
                pass  # nobody but its maker can read it
            case "tool_use":
                message.setdefault("tool_calls", []).append(_call(at, block))
            case kind:
                raise _refusal(at, f"has the type {shown(kind)}, which no assistant has here")
    return message


def _call(where: str, block: Block) -> Block:
    if not isinstance(block.get("input"), dict):
        raise _refusal(where, f"must have an object as `input`, not {shown(block.get('input'))}")
    function = {"name": _string(where, block, "name"), "arguments": block["input"]}
    return {"id": _string(where, block, "id"), "type": "function", "function": function}


def _user(where: str, blocks: list[Block]) -> list[Block]:
    """Results of tools become messages of their own, where they stand."""
    messages: list[Block] = []
    for number, block in enumerate(blocks):
        at = f"{where}, block {number}"
        match block["type"]:
            case "text":
                _add_text(messages, _string(at, block, "text"))
            case "document":
                _add_text(messages, _document(at, block))
            case "tool_result":
                messages.append(_result(at, block))
            case "image" | "container_upload" as kind:
                raise _refusal(at, f"is of type {kind}, and this server takes text only")
            case kind:
                raise _refusal(at, f"has the type {shown(kind)}; a user's blocks are text and tool_result")
    return messages


def _add_text(messages: list[Block], text: str) -> None:
    if not messages or messages[-1]["role"] != "user":
        messages.append({"role": "user", "content": ""})
    messages[-1]["content"] += text


def _document(where: str, block: Block) -> str:
    """A document that is text, below its title."""
    source = block.get("source")
    kind = source.get("type") if isinstance(source, dict) else None
    if not isinstance(source, dict) or kind not in ("text", "content"):
        raise _refusal(where, f"is a document whose source is {shown(kind)}, and this server takes text only")
    text = _string(where, source, "data") if kind == "text" else _text_of("messages", where, source.get("content"))
    titles = [_string(where, block, name) for name in ("title", "context") if block.get(name) is not None]
    return "\n\n".join([*titles, text, ""])


def _result(where: str, block: Block) -> Block:
    content = "" if block.get("content") in (None, []) else _text_of("messages", where, block["content"])
    if not isinstance(block.get("is_error"), bool | None):
        raise _refusal(where, f"has `is_error` {shown(block['is_error'])}: it is true or false")
    if block.get("is_error"):
        content = f"Error: {content}"  # templates have no other place for it
    return {"role": "tool", "tool_call_id": _string(where, block, "tool_use_id"), "content": content}


def _text_of(param: str, where: str, content: object) -> str:
    """Text, or blocks of text joined."""
    if isinstance(content, str):
        return content
    texts = []
    for block in _blocks(param, where, content):
        if block["type"] != "text":
            raise _refusal(
                where, f"holds a block of type {shown(block['type'])}, and this server takes text only", param
            )
        texts.append(_string(where, block, "text", param))
    return "".join(texts)


def _blocks(param: str, where: str, content: object) -> list[Block]:
    if not isinstance(content, list) or not 0 < len(content) <= MAX_BLOCKS:
        raise _refusal(where, f"must have text or 1 to {MAX_BLOCKS} blocks as content, not {shown(content)}", param)
    for block in content:
        if not isinstance(block, dict) or not isinstance(block.get("type"), str):
            raise _refusal(where, f"must hold blocks with a type, not {shown(block)}", param)
    return content


def _string(where: str, block: Block, name: str, param: str = "messages") -> str:
    value = block.get(name)
    if not isinstance(value, str):
        raise _refusal(where, f"must have a string as `{name}`, not {shown(value)}", param)
    return value


def _refusal(where: str, problem: str, param: str = "messages") -> ApiError:
    return ApiError("invalid_value", f"`{param}`: {where} {problem}.", param=param)
