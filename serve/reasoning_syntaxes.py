"""How each family of models marks what it thinks before it answers."""

from collections.abc import Mapping
from dataclasses import dataclass

from corymb.serve.syntax import Act, Edge, Expect, Sink, Syntax, Text
from corymb.serve.tool_syntaxes import HARMONY


@dataclass(frozen=True, slots=True, kw_only=True)
class Thinking:
    """Marks around reasoning, and when it happens."""

    opening: str = "<think>"
    closing: str = "</think>"
    forced: bool = False  # the model thinks first, even where neither it nor the template writes the opening mark
    switch: str | None = "enable_thinking"  # the template's variable that turns it on and off
    default: bool = True  # of the switch
    interrupted: bool = False  # a tool call may come without the closing mark
    harmony: bool = False  # messages with headers, read together with the calls among them


@dataclass(frozen=True, slots=True)
class MarkIds:
    """The tokens of both marks; none where a server knows no reasoning."""

    opening: tuple[int, ...] = ()
    closing: tuple[int, ...] = ()


# Where gpt-oss thinks: it may go on with an answer or with a call.
HARMONY_THOUGHT = ("<|channel|>analysis<|message|>", "<|end|><|start|>assistant")

# By the names of --reasoning-parser.
REASONING: Mapping[str, Thinking] = {
    "deepseek-r1": Thinking(forced=True, switch=None),
    "deepseek-v3": Thinking(switch="thinking", default=False),
    "qwen3": Thinking(interrupted=True),
    "qwen3-thinking": Thinking(forced=True, switch=None, interrupted=True),
    "glm45": Thinking(interrupted=True),
    "kimi": Thinking(opening="◁think▷", closing="◁/think▷", switch=None),
    "kimi_k2": Thinking(switch="thinking", interrupted=True),
    "minimax": Thinking(forced=True, switch=None),
    "step3": Thinking(forced=True, switch=None),
    "gpt-oss": Thinking(opening="<|channel|>", closing="<|channel|>final<|message|>", switch=None, harmony=True),
}


def reasoning_syntax(thinking: Thinking, interruptions: tuple[str, ...]) -> Syntax:
    """The states of a text with reasoning at its beginning.

    It starts in `unsure`, in `opened` where the template or the family opens the reasoning, or in `text` without any.
    """
    if thinking.harmony:
        return HARMONY
    ends = {thinking.closing: Edge("text")}
    if thinking.interrupted:
        ends |= {mark: Edge("text", Act.BREAK, keeps=True) for mark in interruptions}
    opening = {thinking.opening: Edge("thinking")}
    return Syntax(
        {
            "unsure": Expect(opening),
            "opened": Expect(opening, otherwise=Edge("thinking")),
            "thinking": Text(Sink.REASONING, ends),
            "text": Text(Sink.CONTENT, {}),
        },
        start="unsure",
    )


def broken_syntax(closing: str) -> Syntax:
    """The states of what follows where a call seemed to break reasoning off: in `thinking` there was none yet, in
    `called` there was one, and in `text` the closing mark has come."""
    ends = {closing: Edge("text")}
    states = {
        "thinking": Text(Sink.REASONING, ends),
        "called": Text(Sink.CONTENT, ends),
        "text": Text(Sink.CONTENT, {}),
    }
    return Syntax(states, start="thinking")
