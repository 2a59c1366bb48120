"""The fields of Anthropic's /v1/messages, and the body of a chat completion that asks for the same."""

from collections.abc import Mapping
from typing import Any

from corymb.serve.anthropic_content import chat_messages
from corymb.serve.engine import ServedModel
from corymb.serve.errors import ApiError, invalid, shown
from corymb.serve.fields import (
    Field,
    boolean,
    ignored,
    integer,
    number,
    read_integer,
    refused,
    string,
    strings,
    translated,
)
from corymb.serve.requests import request_fields, table
from corymb.serve.sampling_fields import MAX_NEW_TOKENS, MAX_STOP_CHARS, MAX_STOP_CHARS_IN_ALL, MAX_STOPS
from corymb.serve.settings import HttpSettings

# How clients call what is read as a field of chat completions.
_NAMES = {
    "parallel_tool_calls": "tool_choice.disable_parallel_tool_use",
    "chat_template_kwargs": "thinking",
    "max_thinking_tokens": "thinking.budget_tokens",
    "reasoning_effort": "output_config.effort",
    "stop": "stop_sequences",
}
# Members of object fields that are looked at; others are named as ignored.
MEMBERS = {
    "thinking": ("type",),
    "tool_choice": ("type", "name", "disable_parallel_tool_use"),
    "output_config": ("format", "effort"),
    "output_config.format": ("type", "schema"),
    "output_format": ("type", "schema"),
}
_MAX_TOOLS = 512
LEAST_BUDGET = 1024  # tokens; as Anthropic's API has it
_CHOICES = {"auto": "auto", "any": "required", "none": "none"}


def message_fields(_: ServedModel, settings: HttpSettings) -> dict[str, Field]:
    """Every field of a message request that we know."""
    stops = strings("stop_sequences", MAX_STOPS, MAX_STOP_CHARS, max_total=MAX_STOP_CHARS_IN_ALL)
    own = [
        string("model", 256),
        integer("max_tokens", 1, MAX_NEW_TOKENS),
        number("temperature", 0, 1),
        number("top_p", 0, 1, above=True),
        integer("top_k", -1, 2**31 - 1),
        stops,
        boolean("stream"),
        *prompt_fields(),
        translated("output_config", "object: format (a JSON schema), effort"),
        translated("output_format", "object: a JSON schema"),
    ]
    others = [
        refused("container", "there are no containers"),
        refused("mcp_servers", "this server calls no other", []),
        ignored("metadata", "nothing is stored"),
        ignored("service_tier", "there is one"),
        ignored("inference_geo", "there is one place"),
        ignored("cache_control", "the cache finds prefixes by itself"),
        ignored("context_management", "messages are taken as they are"),
        ignored("speed", "there is one"),
        ignored("diagnostics", "answers hold none"),
        ignored("user_profile_id", "not used"),
        ignored("workspace_id", "not used"),
    ]
    return table(own, others, request_fields(settings))


def count_fields() -> dict[str, Field]:
    """Fields of /v1/messages/count_tokens."""
    unused = ("max_tokens", "stream", "output_config", "output_format", "cache_control", "context_management")
    others = ("speed", "user_profile_id", "workspace_id")
    return table(
        [string("model", 256), *prompt_fields()], [ignored(name, "changes no count") for name in (*unused, *others)]
    )


def prompt_fields() -> list[Field]:
    """Fields that make the prompt."""
    return [
        translated("messages", "list of messages; content is text or a list of blocks"),
        translated("system", "text or a list of text blocks"),
        translated("tools", "list of client tools: name, description, input_schema"),
        translated("tool_choice", "object: type auto, any, tool (with name) or none; disable_parallel_tool_use"),
        translated("thinking", "object: type enabled (budget_tokens), adaptive or disabled"),
    ]


def names(values: Mapping[str, Any]) -> dict[str, str]:
    """How a client calls what is read as a field of chat completions."""
    inside = values.get("output_config", {}).get("format") is not None
    told = "output_config.format" if inside or "output_format" not in values else "output_format"
    return _NAMES | {"response_format": told, "response_format.json_schema": told}


def chat_body(values: Mapping[str, Any], *, limits_thinking: bool = False) -> dict[str, Any]:
    """The body of a chat completion with the same meaning. Raises ApiError for what has none.

    `limits_thinking`: whether this server can heed a budget. Clients send one to every server.
    """
    if "messages" not in values:
        raise ApiError("invalid_value", "`messages` is required.", param="messages")
    body: dict[str, Any] = {"messages": chat_messages(values["messages"], values.get("system"))}
    if values.get("tools", []) != []:  # agents send the list of their tools, whatever is in it
        body["tools"] = _tools(values["tools"])
    if "tool_choice" in values:
        body |= _tool_choice(values["tool_choice"])
    if "thinking" in values:
        body["chat_template_kwargs"] = _thinking(values["thinking"])
        budget = _budget(values["thinking"], values.get("max_tokens", MAX_NEW_TOKENS))
        if limits_thinking and budget is not None:
            body["max_thinking_tokens"] = budget
    return body | _output(values)


def _tools(tools: object) -> list[dict[str, Any]]:
    if not isinstance(tools, list) or len(tools) > _MAX_TOOLS:
        raise invalid("tools", f"must be a list of at most {_MAX_TOOLS} tools, not {shown(tools)}.")
    return [_tool(tool) for tool in tools]


def _tool(tool: object) -> dict[str, Any]:
    kind = tool.get("type", "custom") if isinstance(tool, dict) else None
    if not isinstance(tool, dict) or kind not in (None, "custom"):
        raise invalid("tools", f"must hold tools that the client runs (type custom), not {shown(kind)}.")
    if not isinstance(tool.get("input_schema"), dict):
        raise invalid("tools", f"must give each tool an `input_schema` object, not {shown(tool.get('input_schema'))}.")
    function = {"name": tool.get("name"), "parameters": tool["input_schema"]}
    function |= {name: tool[name] for name in ("description", "strict") if tool.get(name) is not None}
    return {"type": "function", "function": function}


def _tool_choice(choice: object) -> dict[str, Any]:
    kind = choice.get("type") if isinstance(choice, dict) else None
    if not isinstance(choice, dict) or not isinstance(kind, str) or kind not in (*_CHOICES, "tool"):
        raise invalid("tool_choice", f"must be an object of type auto, any, tool or none, not {shown(kind or choice)}.")
    named = {"type": "function", "function": {"name": choice.get("name")}}
    body: dict[str, Any] = {"tool_choice": _CHOICES.get(kind, named)}
    single = choice.get("disable_parallel_tool_use")
    if single is not None:
        if not isinstance(single, bool):
            raise invalid("tool_choice", f"has `disable_parallel_tool_use` {shown(single)}: it is true or false.")
        body["parallel_tool_calls"] = not single
    return body


def _thinking(thinking: object) -> dict[str, bool]:
    kind = thinking.get("type") if isinstance(thinking, dict) else None
    if not isinstance(thinking, dict):
        raise invalid("thinking", f"must be an object of type enabled, adaptive or disabled, not {shown(thinking)}.")
    if kind not in ("enabled", "adaptive", "disabled"):
        raise invalid("thinking.type", f"must be enabled, adaptive or disabled, not {shown(kind)}.")
    # The names that chat templates have for it; a template that knows neither ignores both.
    return {"enable_thinking": kind != "disabled", "thinking": kind != "disabled"}


def _budget(thinking: Mapping[str, Any], max_tokens: int) -> int | None:
    """How many tokens thinking may take; None for as many as fit."""
    param, given = "thinking.budget_tokens", thinking.get("budget_tokens")
    if given is None:
        return None
    if thinking["type"] != "enabled":
        raise invalid(param, f"needs `thinking.type` to be enabled, not {thinking['type']}.")
    budget = read_integer(param, given, LEAST_BUDGET, MAX_NEW_TOKENS)
    if budget >= max_tokens:
        raise invalid(param, f"must be less than the {max_tokens} of `max_tokens`, not {budget}: it is a part of them.")
    return budget


def _output(values: Mapping[str, Any]) -> dict[str, Any]:
    config = values.get("output_config", {})
    if not isinstance(config, dict):
        raise invalid("output_config", f"must be an object, not {shown(config)}.")
    if config.get("format") is not None and values.get("output_format") is not None:
        raise invalid("output_format", "is the older name of `output_config.format`: send one of them.")
    body: dict[str, Any] = {}
    name = names(values)["response_format"]
    wanted = values.get("output_format") if config.get("format") is None else config["format"]
    if wanted is not None:
        if not isinstance(wanted, dict) or wanted.get("type") != "json_schema":
            raise invalid(name, f"must be an object of type json_schema, not {shown(wanted)}.")
        schema = {"name": "output", "schema": wanted.get("schema"), "strict": True}
        body["response_format"] = {"type": "json_schema", "json_schema": schema}
    if config.get("effort") is not None:
        body["reasoning_effort"] = config["effort"]
    return body
