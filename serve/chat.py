"""Turns chat messages into one prompt, by the model's chat template."""

import json
from collections.abc import Mapping, Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any

from corymb.models.errors import BrokenModel
from corymb.models.toy_folders import BYTE_TOKENIZER
from corymb.serve.sandbox import TemplateError, compile_template, run_template
from corymb.serve.tokenizer import BYTE_ENDS, Ends, read_ends, read_json

__all__ = ["ChatTemplate", "TemplateError", "load_chat_template"]

Message = dict[str, Any]


class ChatTemplate:
    """A compiled chat template, and the one for requests with tools where the model brings two."""

    def __init__(self, source: str, ends: Ends, *, source_with_tools: str | None = None) -> None:
        self._ends = {"bos_token": ends.bos, "eos_token": ends.eos}
        self._plain = compile_template(source)
        self._with_tools = self._plain if source_with_tools is None else compile_template(source_with_tools)
        sources = (source, source_with_tools or "")
        self.takes_tools = any("tools" in text for text in sources)
        self._takes_calls = any("tool_calls" in text for text in sources)

    def render(
        self,
        messages: Sequence[Message],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        kwargs: Mapping[str, Any] | None = None,
    ) -> str:
        """The prompt, special tokens included: encode it with `add_special_tokens=False`.

        Messages are those of `messages.read_messages`: content is a string. Raises TemplateError with the template's
        own words.
        """
        values = {
            **(kwargs or {}),
            **self._ends,
            "messages": messages if self._takes_calls else [_with_calls_as_text(message) for message in messages],
            "tools": list(tools) if tools else None,
            "documents": None,
            "add_generation_prompt": add_generation_prompt,
        }
        return run_template(self._with_tools if tools else self._plain, values)


def load_chat_template(folder: Path, override: Path | None = None) -> ChatTemplate | None:
    """The template of the file `override` or else of the model folder; None without one. Raises ModelError."""
    config = read_json(folder / "tokenizer_config.json")
    ends = BYTE_ENDS if config.get("tokenizer_class") == BYTE_TOKENIZER else read_ends(config)
    named = _named_templates(folder, config) if override is None else {"default": _read(override)}
    if "default" not in named:
        return None
    try:
        return ChatTemplate(named["default"], ends, source_with_tools=named.get("tool_use"))
    except TemplateError as error:
        raise BrokenModel(f"The chat template of {override or folder} cannot be used: {error}.") from error


def _named_templates(folder: Path, config: Mapping[str, Any]) -> dict[str, str]:
    """Templates by name. A file of its own goes before one inside a JSON file, as in Hugging Face's tools."""
    file = folder / "chat_template.jinja"
    if file.is_file():
        return {"default": _read(file)}
    found = read_json(folder / "chat_template.json").get("chat_template") or config.get("chat_template")
    if isinstance(found, str):
        return {"default": found}
    if isinstance(found, list):
        return {entry["name"]: entry["template"] for entry in found if _is_named(entry)}
    if config.get("tokenizer_class") == BYTE_TOKENIZER:
        return {"default": files("corymb.serve").joinpath("chatml.jinja").read_text(encoding="utf-8")}
    return {}


def _is_named(entry: Any) -> bool:
    return isinstance(entry, dict) and isinstance(entry.get("name"), str) and isinstance(entry.get("template"), str)


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise BrokenModel(f"The chat template {path} cannot be read: {error}.") from error


def _with_calls_as_text(message: Message) -> Message:
    """Writes tool calls into the content, for templates that would leave them out."""
    if not message.get("tool_calls"):
        return message
    calls = [_call_as_text(call["function"]) for call in message["tool_calls"]]
    content = "\n".join([message["content"], *calls] if message["content"] else calls)
    return {key: value for key, value in message.items() if key != "tool_calls"} | {"content": content}


def _call_as_text(function: Mapping[str, Any]) -> str:
    call = {"name": function["name"], "arguments": function["arguments"]}
    return f"<tool_call>\n{json.dumps(call, ensure_ascii=False)}\n</tool_call>"
