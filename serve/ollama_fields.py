"""The fields of Ollama's /api/chat and /api/generate, and the body of a chat completion that asks for the same."""

from collections.abc import Mapping
from typing import Any

from corymb.serve.engine import ServedModel
from corymb.serve.errors import ApiError, invalid, shown
from corymb.serve.fields import Field, boolean, ignored, integer, number, refused, string, strings, translated
from corymb.serve.messages import MAX_MESSAGES
from corymb.serve.requests import table
from corymb.serve.sampling_fields import (
    MAX_NEW_TOKENS,
    MAX_STOP_CHARS,
    MAX_STOP_CHARS_IN_ALL,
    MAX_STOPS,
    MAX_TOP_LOGPROBS,
)

# How clients call what is read as a field of chat completions.
NAMES = {
    "response_format": "format",
    "response_format.json_schema.schema": "format",
    "chat_template_kwargs": "think",
    "reasoning_effort": "think",
}
_MAX_TEXT = 1 << 24  # characters; the body's limit comes first
_RENAMED = {"num_predict": "max_tokens", "repeat_penalty": "repetition_penalty"}
_HARDWARE = ("num_ctx", "num_batch", "num_gpu", "main_gpu", "num_thread", "numa", "low_vram", "f16_kv", "logits_all")
_LOADING = ("vocab_only", "use_mmap", "use_mlock", "embedding_only", "num_keep")


def ollama_chat_fields(_: ServedModel) -> dict[str, Field]:
    """Every field of /api/chat that we know."""
    own = [
        translated("messages", "list of messages: role, content, thinking, tool_calls, tool_name"),
        translated("tools", "list of tools of type function"),
    ]
    return table(own, _shared())


def ollama_generate_fields(_: ServedModel) -> dict[str, Field]:
    """Every field of /api/generate that we know."""
    own = [
        string("prompt", _MAX_TEXT),
        string("system", _MAX_TEXT),
        boolean("raw"),
        refused("suffix", "this server does not fill in the middle", ""),
        refused("template", "a request may not bring a template", ""),
        refused("images", "this server takes text only", []),
        *(refused(name, "this server writes text only") for name in ("width", "height", "steps")),
        refused("context", "send the conversation to /api/chat", []),
    ]
    return table(own, _shared())


def _shared() -> list[Field]:
    return [
        string("model", 256),
        translated("format", "json, or an object: a JSON schema"),
        translated("options", "object, see below"),
        translated("think", "boolean, or low, medium, high"),
        Field("stream", "boolean, true if left out", boolean("stream").read),
        boolean("logprobs"),
        integer("top_logprobs", 0, MAX_TOP_LOGPROBS),
        ignored("keep_alive", "the model stays loaded"),
    ]


def option_fields() -> dict[str, Field]:
    """Fields of `options`."""
    own = [
        integer("num_predict", -2, MAX_NEW_TOKENS),
        number("temperature", 0, 100),
        number("top_p", 0, 1, above=True),
        integer("top_k", -1, 2**31 - 1),
        number("min_p", 0, 1),
        integer("seed", -(2**63), 2**63 - 1),
        strings("stop", MAX_STOPS, MAX_STOP_CHARS, max_total=MAX_STOP_CHARS_IN_ALL),
        number("repeat_penalty", 0.01, 10),
        number("presence_penalty", -2, 2),
        number("frequency_penalty", -2, 2),
        ignored("repeat_last_n", "penalties look at the whole answer"),
        ignored("mirostat_tau", "without mirostat it changes nothing"),
        ignored("mirostat_eta", "without mirostat it changes nothing"),
        refused("mirostat", "mirostat is not available", 0),
        refused("tfs_z", "tail-free sampling is not available", 1, 1.0),
        refused("typical_p", "typical sampling is not available", 1, 1.0),
        refused("penalize_newline", "penalties know no exceptions", True),
    ]
    return table(own, [ignored(name, "decided when the server starts") for name in (*_HARDWARE, *_LOADING)])


def chat_options(options: Mapping[str, Any]) -> dict[str, Any]:
    """Checked options by the names of chat completions."""
    chat = {_RENAMED.get(name, name): value for name, value in options.items() if value is not None}
    if chat.get("max_tokens", 0) < 0:
        del chat["max_tokens"]  # as many as fit
    return chat


def chat_body(values: Mapping[str, Any]) -> dict[str, Any]:
    """The body of a chat completion with the same meaning."""
    body: dict[str, Any] = {"messages": _messages(values)}
    if values.get("tools") not in (None, []):  # its client always sends a list
        body["tools"] = values["tools"]
    if values.get("format") not in (None, ""):  # its client sends "" for none
        body["response_format"] = _response_format(values["format"])
    return body | _thinking(values.get("think"))


def _messages(values: Mapping[str, Any]) -> object:
    if "messages" not in values:
        system = [{"role": "system", "content": values["system"]}] if values.get("system") else []
        return [*system, {"role": "user", "content": values.get("prompt", "")}]
    messages = values["messages"]
    if not isinstance(messages, list) or len(messages) > MAX_MESSAGES:
        raise invalid("messages", f"must be a list of at most {MAX_MESSAGES} messages, not {shown(messages)}.")
    return [_message(f"message {number}", message) for number, message in enumerate(messages)]


def _message(where: str, message: object) -> object:
    if not isinstance(message, dict):
        return message  # refused as any chat's
    if message.get("images") not in (None, []):
        raise ApiError(
            "invalid_value", f"`messages`: {where} has images, and this server takes text only.", param="messages"
        )
    renamed = {"thinking": "reasoning_content", "tool_name": "name"}
    for name in renamed:
        if not isinstance(message.get(name), str | None):
            raise invalid("messages", f"must have text as `{name}`; {where} has {shown(message[name])}.")
    known = ("role", "content", "thinking", "tool_calls", "tool_name", "tool_call_id")
    return {renamed.get(name, name): message[name] for name in known if message.get(name) is not None}


def _response_format(wanted: object) -> dict[str, Any]:
    if wanted == "json":
        return {"type": "json_object"}
    if not isinstance(wanted, dict):
        raise invalid("format", f"must be json or a JSON schema, not {shown(wanted)}.")
    return {"type": "json_schema", "json_schema": {"name": "output", "schema": wanted, "strict": True}}


def _thinking(think: object) -> dict[str, Any]:
    if think is None:
        return {}
    if not isinstance(think, bool | str):
        raise invalid("think", f"must be true, false, low, medium or high, not {shown(think)}.")
    # The names that chat templates have for it; a template that knows neither ignores both.
    on = think is not False
    body: dict[str, Any] = {"chat_template_kwargs": {"enable_thinking": on, "thinking": on}}
    return body | ({"reasoning_effort": think} if isinstance(think, str) else {})
