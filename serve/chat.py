"""Turns chat messages into one prompt, by the model's chat template."""

import json
from collections.abc import Mapping, Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any

from corymb.models.errors import BrokenModel
from corymb.models.toy_folders import BYTE_TOKENIZER
from corymb.serve.sandbox import TemplateError, compile_template, run_template, variables
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
        self.source = "\n".join(sources)
        self.variables = variables(sources[-1] or source)
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
        if tools and not self.takes_tools:
            messages = _with_tools_as_text(messages, tools)
        values = {
            **(kwargs or {}),
            **self._ends,
            "messages": messages if self._takes_calls else [_with_calls_as_text(message) for message in messages],
            "tools": list(tools) if tools else None,
            "documents": None,
            "add_generation_prompt": add_generation_prompt,
        }
        return run_template(self._with_tools if tools else self._plain, values)


def load_chat_template(folder: Path, chosen: str | None = None) -> ChatTemplate | None:
    """The template that the model folder brings; None without one. Raises ModelError.

    `chosen`: a file, the name of one of several that the folder holds, or one that comes with the server.
    """
    config = read_json(folder / "tokenizer_config.json")
    ends = BYTE_ENDS if config.get("tokenizer_class") == BYTE_TOKENIZER else read_ends(config)
    named = _named_templates(folder, config)
    if chosen is not None:
        named = {"default": _chosen(chosen, named)}
    if "default" not in named:
        return None
    try:
        return ChatTemplate(named["default"], ends, source_with_tools=named.get("tool_use"))
    except TemplateError as error:
        raise BrokenModel(f"The chat template of {chosen or folder} cannot be used: {error}.") from error


def _chosen(chosen: str, named: Mapping[str, str]) -> str:
    path = Path(chosen).expanduser()
    if path.is_file():
        return _read(path)
    if chosen in named:
        return named[chosen]
    if chosen == "chatml":
        return _chatml()
    known = ", ".join(["chatml", *named])
    raise BrokenModel(f"The chat template {chosen} is no file, nor one of the names {known}.")


def _chatml() -> str:
    return files("corymb.serve").joinpath("chatml.jinja").read_text(encoding="utf-8")


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
        return {"default": _chatml()}
    return {}


def _is_named(entry: Any) -> bool:
    return isinstance(entry, dict) and isinstance(entry.get("name"), str) and isinstance(entry.get("template"), str)


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise BrokenModel(f"The chat template {path} cannot be read: {error}.") from error


def _with_tools_as_text(messages: Sequence[Message], tools: Sequence[Mapping[str, Any]]) -> list[Message]:
    """Describes tools in the system message, for templates that would leave them out."""
    listed = "\n".join(json.dumps(tool, ensure_ascii=False) for tool in tools)
    text = _TOOLS_AS_TEXT.format(tools=listed)
    if messages and messages[0]["role"] == "system":
        return [messages[0] | {"content": f"{messages[0]['content']}\n\n{text}"}, *messages[1:]]
    return [{"role": "system", "content": text}, *messages]


_TOOLS_AS_TEXT = """\
You may call functions. Each is described by one line of JSON:
<tools>
{tools}
</tools>
To call one, write its name and its arguments as JSON between marks, once for each call, and then stop:
<tool_call>
{{"name": "…", "arguments": {{…}}}}
</tool_call>"""


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
