"""What a client says about the thinking that goes before an answer."""

from typing import Any

from corymb.serve.errors import invalid, shown
from corymb.serve.fields import Field, boolean, inert, integer, refused
from corymb.serve.sampling_fields import MAX_NEW_TOKENS
from corymb.serve.settings import HttpSettings

EFFORT_VARIABLES = ("reasoning_effort", "enable_thinking", "thinking")  # of chat templates
EFFORTS = ("none", "minimal", "low", "medium", "high", "xhigh", "max")


def reasoning_fields(settings: HttpSettings) -> list[Field]:
    """Fields about reasoning."""
    about = f"one of {', '.join(EFFORTS)}; given to the chat template"
    effort = Field("reasoning_effort", about, _read_effort, schema={"enum": list(EFFORTS)})
    return [
        boolean("separate_reasoning"),
        boolean("stream_reasoning"),
        _limit(settings),
        effort if settings.uses_effort else inert(effort, "this model's template does not know it"),
    ]


def _limit(settings: HttpSettings) -> Field:
    if settings.reasoning_parser is None and settings.tool_call_parser != "gpt-oss":
        return refused("max_thinking_tokens", "reasoning is known to servers started with --reasoning-parser")
    return integer("max_thinking_tokens", 0, MAX_NEW_TOKENS)


def _read_effort(param: str, value: object) -> str:
    if not isinstance(value, str) or value not in EFFORTS:
        raise invalid(param, f"must be one of {', '.join(EFFORTS)}, not {shown(value)}.")
    return value


def template_variables(values: dict[str, Any]) -> dict[str, Any]:
    """What a request tells the chat template, apart from messages and tools."""
    effort = values.get("reasoning_effort")
    told: dict[str, Any] = {}
    if effort == "none":
        told = {"enable_thinking": False, "thinking": False}
    elif effort is not None:
        told = {"reasoning_effort": effort}
    kwargs: dict[str, Any] = values.get("chat_template_kwargs", {})
    return told | kwargs
