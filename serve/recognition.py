"""Which formats a model writes, told by its chat template: the model writes what the template shows it."""

from collections.abc import Sequence

# The first entry whose strings are all in the template tells; formats that contain another's strings come first.
_TOOLS: Sequence[tuple[tuple[str, ...], str]] = (
    (("<|channel|>", "<|message|>"), "gpt-oss"),
    (("<|tool_calls_section_begin|>",), "kimi_k2"),
    (("｜DSML｜",), "deepseekv32"),
    (("<｜tool▁calls▁begin｜>", "```json"), "deepseekv3"),
    (("<｜tool▁calls▁begin｜>",), "deepseekv31"),
    (("<minimax:tool_call>",), "minimax-m2"),
    (("[TOOL_CALLS]",), "mistral"),
    (("<tool_call>", "<arg_key>"), "glm45"),
    (("<tool_call>", "<function="), "qwen3_coder"),
    (("<tool_call>",), "qwen"),
    (("<|python_start|>",), "pythonic"),
    (("<|python_tag|>",), "llama3"),
    (('"parameters"', "<|eot_id|>"), "llama3"),
)
_REASONING: Sequence[tuple[tuple[str, ...], str]] = (
    (("<|channel|>", "<|message|>"), "gpt-oss"),
    (("◁think▷",), "kimi"),
    (("<|tool_calls_section_begin|>", "think"), "kimi_k2"),
    (("<｜Assistant｜>", "thinking"), "deepseek-v3"),
    (("<｜Assistant｜>", "<think>"), "deepseek-r1"),
    (("<minimax:tool_call>",), "minimax"),
    (("<arg_key>", "think"), "glm45"),
    (("enable_thinking",), "qwen3"),
    (("<think>",), "qwen3"),
)


def recognise_tools(template: str) -> str | None:
    """A name of --tool-call-parser, or None."""
    return _first(_TOOLS, template)


def recognise_reasoning(template: str) -> str | None:
    """A name of --reasoning-parser, or None."""
    return _first(_REASONING, template)


def _first(entries: Sequence[tuple[tuple[str, ...], str]], template: str) -> str | None:
    return next((name for strings, name in entries if all(string in template for string in strings)), None)
