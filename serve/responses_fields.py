"""The fields of OpenAI's /v1/responses, and the body of a chat completion that asks for the same."""

from collections.abc import Mapping
from typing import Any

from corymb.serve.engine import ServedModel
from corymb.serve.errors import invalid, shown
from corymb.serve.fields import Field, boolean, ignored, integer, refused, string, translated
from corymb.serve.requests import request_fields, table
from corymb.serve.responses_items import Item, chat_messages
from corymb.serve.sampling_fields import MAX_NEW_TOKENS, MAX_TOP_LOGPROBS, sampling_fields, structure_fields
from corymb.serve.settings import HttpSettings

# How clients call what is read as a field of chat completions.
NAMES = {
    "messages": "input",
    "response_format": "text.format",
    "response_format.json_schema": "text.format",
    "reasoning_effort": "reasoning.effort",
}
# Members of object fields that are looked at; others are named as ignored.
MEMBERS = {
    "text": ("format",),
    "text.format": ("type", "name", "description", "schema", "strict"),
    "reasoning": ("effort",),
    "tool_choice": ("type", "name", "mode", "tools"),
}
LOGPROBS = "message.output_text.logprobs"
# What else clients may ask to be included: results of tools that only OpenAI runs, images, thoughts in cipher.
_UNTOLD = (
    *("file_search_call.results", "web_search_call.results", "web_search_call.action.sources"),
    *("code_interpreter_call.outputs", "computer_call_output.output.image_url", "message.input_image.image_url"),
    "reasoning.encrypted_content",
)
_MAX_TOOLS = 512
_MAX_INCLUDES = 32
_INCLUDES = (LOGPROBS, *_UNTOLD)
_INCLUDE = {"type": "array", "items": {"enum": list(_INCLUDES)}, "maxItems": _MAX_INCLUDES}
_MAX_PAIRS, _MAX_KEY_CHARS, _MAX_VALUE_CHARS = 16, 64, 512
_METADATA = {
    "type": "object",
    "propertyNames": {"maxLength": _MAX_KEY_CHARS},
    "additionalProperties": {"type": "string", "maxLength": _MAX_VALUE_CHARS},
    "maxProperties": _MAX_PAIRS,
}
_MAX_INSTRUCTIONS = 1 << 24  # characters; the body's limit comes first


def response_fields(info: ServedModel, settings: HttpSettings) -> dict[str, Field]:
    """Every field of a response request that we know."""
    about = f"object of at most {_MAX_PAIRS} short strings, which come back"
    own = [
        string("model", 256),
        translated("input", "text, or list of items: message, function_call, function_call_output, reasoning"),
        string("instructions", _MAX_INSTRUCTIONS),
        integer("max_output_tokens", 1, MAX_NEW_TOKENS),
        translated("tools", "list of tools of type function"),
        translated(
            "tool_choice", "auto, none, required, or object: type function, name; or type allowed_tools, mode, tools"
        ),
        boolean("parallel_tool_calls"),
        translated("text", "object: format (text, json_object, json_schema)"),
        translated("reasoning", "object: effort"),
        Field("include", f"list of {LOGPROBS}, and of others that add nothing here", read_include, schema=_INCLUDE),
        integer("top_logprobs", 0, MAX_TOP_LOGPROBS),
        Field("metadata", about, _read_metadata, schema=_METADATA),
        integer("max_tool_calls", 1, 2**31 - 1),  # of tools that the server runs: none
        boolean("stream"),
        *_store_fields(settings),
        translated("chat_template_kwargs", "object of template variables: text, numbers, booleans"),
    ]
    others = [
        refused("n", "a response has one choice", 1),
        refused("background", "a response ends with its connection", False),
        refused("conversation", "use `previous_response_id`"),
        refused("prompt", "there are no stored prompts"),
        refused("truncation", "prompts are never cut", "disabled"),
        refused("moderation", "this server does not moderate"),
        refused("image", "this server writes text only"),
        refused("max_tokens", "use `max_output_tokens`"),
        refused("messages", "use `input`"),
        refused("rid", "a response has the name that the server gives it"),
        ignored("stream_options", "streams are not padded"),
        ignored("context_management", "conversations are taken as they are"),
        ignored("access_programs", "not used"),
        ignored("background_options", "a response ends with its connection"),
        ignored("user", "not used"),
        ignored("prompt_cache_key", "the cache finds prefixes by itself; see `cache_salt`"),
        ignored("prompt_cache_options", "the cache finds prefixes by itself"),
        ignored("prompt_cache_retention", "what was used last stays longest"),
        ignored("safety_identifier", "not used"),
        ignored("service_tier", "there is one"),
    ]
    picks = [field for field in sampling_fields(info.vocab_size) if field.name != "n"]
    where = [field for field in request_fields(settings) if field.name != "rid"]
    return table(own, others, picks, where, structure_fields())


def _store_fields(settings: HttpSettings) -> list[Field]:
    if settings.enable_response_store:
        return [boolean("store"), string("previous_response_id", 128, min_chars=1)]
    why = "start the server with --enable-response-store"
    return [refused("store", why, False), refused("previous_response_id", why)]


def chat_body(values: Mapping[str, Any], items: list[Item]) -> dict[str, Any]:
    """The body of a chat completion with the same meaning."""
    body: dict[str, Any] = {"messages": chat_messages(items, values.get("instructions"))}
    if values.get("tools", []) != []:  # agents send the list of their tools, whatever is in it
        body["tools"] = _tools(values["tools"])
    if "tool_choice" in values and ("tools" in body or values["tool_choice"] not in ("auto", "none")):
        body["tool_choice"] = _tool_choice(values["tool_choice"])
    for name in ("parallel_tool_calls", "chat_template_kwargs"):
        if name in values:
            body[name] = values[name]
    wanted = _member(values, "text", "format")
    if wanted is not None:
        body["response_format"] = _response_format(wanted)
    effort = _member(values, "reasoning", "effort")
    return body if effort is None else body | {"reasoning_effort": effort}


def _member(values: Mapping[str, Any], name: str, member: str) -> object:
    value = values.get(name, {})
    if not isinstance(value, dict):
        raise invalid(name, f"must be an object, not {shown(value)}.")
    return value.get(member)


def _tools(tools: object) -> list[dict[str, Any]]:
    if not isinstance(tools, list) or len(tools) > _MAX_TOOLS:
        raise invalid("tools", f"must be a list of at most {_MAX_TOOLS} tools, not {shown(tools)}.")
    return [_tool(tool) for tool in tools]


def _tool(tool: object) -> dict[str, Any]:
    kind = tool.get("type") if isinstance(tool, dict) else None
    if not isinstance(tool, dict) or kind != "function":
        raise invalid("tools", f"must hold tools of type function, which the client runs, not {shown(kind)}.")
    names = ("name", "description", "parameters", "strict")
    return {"type": "function", "function": {name: tool[name] for name in names if tool.get(name) is not None}}


def _tool_choice(choice: object) -> object:
    if not isinstance(choice, dict):
        return choice
    if choice.get("type") == "allowed_tools":
        tools = choice.get("tools")
        named = [_named(tool) for tool in tools] if isinstance(tools, list) else tools
        return {"type": "allowed_tools", "allowed_tools": {"mode": choice.get("mode"), "tools": named}}
    return _named(choice)


def _named(tool: object) -> object:
    kind = tool.get("type") if isinstance(tool, dict) else None
    if not isinstance(tool, dict) or kind != "function":
        raise invalid("tool_choice", f"must name tools of type function, not {shown(kind)}.")
    return {"type": "function", "function": {"name": tool.get("name")}}


def _response_format(wanted: object) -> dict[str, Any]:
    if not isinstance(wanted, dict):
        raise invalid("text.format", f"must be an object, not {shown(wanted)}.")
    if wanted.get("type") != "json_schema":
        return wanted
    if "schema" not in wanted:
        raise invalid("text.format", 'must be like {"type": "json_schema", "name": …, "schema": {…}}.')
    return {"type": "json_schema", "json_schema": {name: value for name, value in wanted.items() if name != "type"}}


def read_include(param: str, value: object) -> list[str]:
    """What clients want told besides."""
    if not isinstance(value, list) or len(value) > _MAX_INCLUDES:
        raise invalid(param, f"must be a list of at most {_MAX_INCLUDES} strings, not {shown(value)}.")
    for item in value:
        if item not in _INCLUDES:
            raise invalid(param, f"may hold {', '.join(_INCLUDES)}, not {shown(item)}.")
    return value


def _read_metadata(param: str, value: object) -> dict[str, str]:
    if not isinstance(value, dict) or len(value) > _MAX_PAIRS:
        raise invalid(param, f"must be an object of at most {_MAX_PAIRS} strings, not {shown(value)}.")
    for key, item in value.items():
        if not isinstance(item, str) or len(item) > _MAX_VALUE_CHARS or len(key) > _MAX_KEY_CHARS:
            limits = f"keys of at most {_MAX_KEY_CHARS} and strings of at most {_MAX_VALUE_CHARS} characters"
            raise invalid(param, f"must hold {limits}, not {shown(item)}.")
    return value
