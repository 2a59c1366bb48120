"""From chat messages to a prompt."""

import asyncio
from dataclasses import dataclass
from typing import Any

from corymb.serve.chat import ChatTemplate
from corymb.serve.errors import ApiError, invalid, shown
from corymb.serve.fields import Field, boolean, refused
from corymb.serve.messages import read_messages, with_short_ids
from corymb.serve.prompts import PromptEncoder
from corymb.serve.reasoning import template_variables
from corymb.serve.sandbox import TemplateError
from corymb.serve.tools import tool_use, tools_field

_INLINE_CHARS = 16_384  # longer conversations are rendered in a thread
_TOOL_CHARS = 500  # a function counts as so many
RESERVED_VARIABLES = frozenset(
    {"messages", "tools", "documents", "add_generation_prompt", "tokenize", "chat_template", "conversation"}
)
_MAX_KWARGS = 32
_MAX_KWARG_CHARS = 1024


def conversation_fields() -> list[Field]:
    """Fields that make the prompt."""
    return [
        Field("messages", "list of messages", read_messages),
        Field("chat_template_kwargs", "object of template variables: text, numbers, booleans", read_kwargs),
        boolean("add_generation_prompt"),
        boolean("add_special_tokens"),
        refused("continue_final_message", "set `add_generation_prompt` to false instead", False),
        refused("chat_template", "a request may not bring a template"),
        tools_field(),
        refused("documents", "documents are not available", []),
        refused("mm_processor_kwargs", "this server takes text only"),
    ]


def read_kwargs(param: str, value: object) -> dict[str, Any]:
    """Variables for the chat template; plain values only, and none of the names that rendering uses itself."""
    if not isinstance(value, dict) or len(value) > _MAX_KWARGS:
        raise invalid(param, f"must be an object of at most {_MAX_KWARGS} variables, not {shown(value)}.")
    for name, item in value.items():
        if name in RESERVED_VARIABLES or not name.isidentifier() or name.startswith("_") or len(name) > 64:
            raise invalid(param, f"may not set {shown(name)}.")
        if not isinstance(item, str | int | float | bool | None) or len(str(item)) > _MAX_KWARG_CHARS:
            raise invalid(param, f"must hold short text, numbers and booleans, not {shown(item)}.")
    return value


@dataclass(frozen=True, slots=True)
class Rendered:
    """A conversation as the model sees it."""

    text: str
    token_ids: list[int]


class Conversation:
    """Renders and tokenises conversations."""

    def __init__(self, template: ChatTemplate | None, encoder: PromptEncoder, *, short_ids: bool = False) -> None:
        self._template = template
        self._encoder = encoder
        self._short_ids = short_ids  # of tool calls

    async def render(self, values: dict[str, Any]) -> Rendered:
        """From checked values. Raises the template's own complaint as an ApiError."""
        if "messages" not in values:
            raise ApiError("invalid_value", "`messages` is required.", param="messages")
        text = await self._render_text(values)
        special = values.get("add_special_tokens", False)  # templates spell their own
        token_ids = (await self._encoder.encode([text], add_special_tokens=special))[0]
        if not token_ids:
            raise invalid("messages", "must not be empty: the chat template made no tokens of them.")
        return Rendered(text, token_ids)

    async def _render_text(self, values: dict[str, Any]) -> str:
        if self._template is None:
            message = "This model has no chat template: use /v1/completions, or start the server with --chat-template."
            raise ApiError("template_error", message, param="messages")
        messages = values["messages"]
        try:
            num_chars = sum(len(message["content"]) for message in messages)
            if num_chars + _TOOL_CHARS * len(values.get("tools", ())) <= _INLINE_CHARS:
                return self._render(self._template, values)
            return await asyncio.to_thread(self._render, self._template, values)
        except TemplateError as error:
            raise ApiError(
                "template_error", f"The chat template refused the messages: {error}", param="messages"
            ) from error

    def _render(self, template: ChatTemplate, values: dict[str, Any]) -> str:
        use = tool_use(values)
        return template.render(
            with_short_ids(values["messages"]) if self._short_ids else values["messages"],
            tools=use.for_template() if use is not None else None,
            add_generation_prompt=values.get("add_generation_prompt", True),
            kwargs=template_variables(values),
        )
