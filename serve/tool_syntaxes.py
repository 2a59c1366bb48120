"""How each family of models writes tool calls."""

import re
from collections.abc import Mapping

from corymb.serve.syntax import Act, Edge, Expect, JsonArguments, JsonCall, PythonArguments, Sink, State, Syntax, Text


def _text(*begins: str, to: str) -> Text:
    return Text(Sink.CONTENT, {mark: Edge(to, Act.BEGIN) for mark in begins})


# <tool_call>{"name": "f", "arguments": {…}}</tool_call>
HERMES = Syntax(
    {
        "text": _text("<tool_call>", to="call"),
        "call": JsonCall("end"),
        "end": Expect({"</tool_call>": Edge("text", Act.CLOSE)}),
    },
    begins=("<tool_call>",),
)


# <tool_call><function=f><parameter=key>value</parameter>…</function></tool_call>
def _qwen3_coder(*value_ends: str) -> Syntax:
    return Syntax(
        {
            "text": Text(
                Sink.CONTENT, {"<tool_call>": Edge("function", Act.BEGIN), "<function=": Edge("name", Act.BEGIN)}
            ),
            "function": Expect({"<function=": Edge("name")}),
            "name": Text(Sink.TAKEN, {">": Edge("parameters", Act.NAME)}),
            "parameters": Expect(
                {
                    "<parameter=": Edge("key"),
                    "</function>": Edge("end", Act.CLOSE),
                    "</tool_call>": Edge("text", Act.CLOSE),
                }
            ),
            "key": Text(Sink.TAKEN, {">": Edge("value", Act.KEY)}),
            "value": Text(
                Sink.VALUE,
                {"</parameter>": Edge("parameters", Act.VALUE)}
                | {end: Edge("parameters", Act.VALUE, keeps=True) for end in value_ends},
                trims=True,
            ),
            "end": Expect({"</tool_call>": Edge("text")}, otherwise=Edge("text")),
        },
        begins=("<tool_call>", "<function="),
    )


# Left alone, models forget the last value's mark now and then: so the ends of the call end it too.
QWEN3_CODER = _qwen3_coder("\n</function>\n</tool_call>")
QWEN3_CODER_EXACT = _qwen3_coder()

# <tool_call>f<arg_key>key</arg_key><arg_value>value</arg_value>…</tool_call>, with or without line breaks
GLM = Syntax(
    {
        "text": _text("<tool_call>", to="begin"),
        "begin": Expect({}, otherwise=Edge("name")),
        "name": Text(
            Sink.TAKEN,
            {mark: Edge("arguments", Act.NAME, keeps=True) for mark in ("\n", "<arg_key>", "</tool_call>")},
        ),
        "arguments": Expect({"<arg_key>": Edge("key"), "</tool_call>": Edge("text", Act.CLOSE)}),
        "key": Text(Sink.TAKEN, {"</arg_key>": Edge("before value", Act.KEY)}),
        "before value": Expect({"<arg_value>": Edge("value")}),
        "value": Text(Sink.VALUE, {"</arg_value>": Edge("arguments", Act.VALUE)}),
    },
    begins=("<tool_call>",),
)

# {"name": "f", "parameters": {…}}, alone or after a tag, several between semicolons or in a list
LLAMA3 = Syntax(
    {
        "start": Expect(
            {
                "<|python_tag|>": Edge("call"),
                "{": Edge("call", keeps=True),
                "[": Edge("item"),
            }
        ),
        "text": _text("<|python_tag|>", to="call"),
        "call": JsonCall("more"),
        "more": Expect(
            {
                ";": Edge("call", Act.BEGIN),
                "<|python_tag|>": Edge("call", Act.BEGIN),
                "{": Edge("call", Act.BEGIN, keeps=True),
            }
        ),
        "item": JsonCall("items"),
        "items": Expect({",": Edge("item", Act.BEGIN), "]": Edge("text", Act.CLOSE)}),
    },
    start="start",
    bare=True,
    begins=("<|python_tag|>",),
)

# [{"name": "f", "parameters": {…}}, …]: what a grammar makes a model write that knows no format of its own
JSON = Syntax(
    {
        "start": Expect({"[": Edge("item"), "{": Edge("call", keeps=True)}),
        "text": Text(Sink.CONTENT, {}),
        "call": JsonCall("end"),
        "end": Expect({}, otherwise=Edge("text", Act.CLOSE)),
        "item": JsonCall("items"),
        "items": Expect({",": Edge("item", Act.BEGIN), "]": Edge("text", Act.CLOSE)}),
    },
    start="start",
    bare=True,
)

# [f(key="value", …), …]
PYTHONIC = Syntax(
    {
        "start": Expect({"<|python_start|>": Edge("list"), "[": Edge("name")}),
        "text": _text("<|python_start|>", to="list"),
        "list": Expect({"[": Edge("name")}),
        "name": Text(Sink.TAKEN, {"(": Edge("arguments", Act.NAME)}, letters=re.compile(r"[\w.\s-]*")),
        "arguments": PythonArguments("more"),
        "more": Expect({",": Edge("name", Act.BEGIN), "]": Edge("end", Act.CLOSE)}),
        "end": Expect({"<|python_end|>": Edge("text")}, otherwise=Edge("text")),
    },
    start="start",
    bare=True,
    begins=("<|python_start|>",),
)

# [TOOL_CALLS][{"name": "f", "arguments": {…}}, …] and [TOOL_CALLS]f[CALL_ID]id[ARGS]{…}
_MISTRAL_NAME = re.compile(r"^(?P<name>[^\[\]{}]+)(?:\[CALL_ID\](?P<id>\w+))?$")
MISTRAL = Syntax(
    {
        "text": _text("[TOOL_CALLS]", to="call"),
        "call": Expect({"[": Edge("item"), "{": Edge("object", keeps=True)}, otherwise=Edge("name")),
        "object": JsonCall("end"),
        "item": JsonCall("items"),
        "items": Expect({",": Edge("item", Act.BEGIN), "]": Edge("text", Act.CLOSE)}),
        "name": Text(
            Sink.TAKEN,
            {
                "[ARGS]": Edge("arguments", Act.NAME, pattern=_MISTRAL_NAME),
                "{": Edge("arguments", Act.NAME, keeps=True, pattern=_MISTRAL_NAME),
            },
        ),
        "arguments": JsonArguments("end"),
        "end": Expect({"[TOOL_CALLS]": Edge("call", Act.BEGIN)}),
    },
    ids="short",
    begins=("[TOOL_CALLS]",),
)

_CALLS, _CALLS_END = "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"
_CALL, _SEPARATOR, _CALL_END = "<｜tool▁call▁begin｜>", "<｜tool▁sep｜>", "<｜tool▁call▁end｜>"
_DEEPSEEK: dict[str, State] = {
    "text": _text(_CALLS, to="calls"),
    "calls": Expect({_CALL: Edge("begin", Act.BEGIN), _CALLS_END: Edge("text")}),
    "end": Expect({_CALL_END: Edge("calls", Act.CLOSE)}),
}

# calls begin, call begin, function, separator, name, a fenced block of JSON, call end, …, calls end
DEEPSEEK_V3 = Syntax(
    {
        **_DEEPSEEK,
        "begin": Text(Sink.TAKEN, {_SEPARATOR: Edge("name")}),
        "name": Text(Sink.TAKEN, {"```json": Edge("arguments", Act.NAME)}),
        "arguments": JsonArguments("fence"),
        "fence": Expect({"```": Edge("end")}),
    },
    begins=(_CALLS,),
)

# The same without the kind and the fence: name, separator, JSON.
DEEPSEEK_V31 = Syntax(
    {
        **_DEEPSEEK,
        "begin": Text(Sink.TAKEN, {_SEPARATOR: Edge("arguments", Act.NAME)}),
        "arguments": JsonArguments("end"),
    },
    begins=(_CALLS,),
)


def _invocations(prefix: str, wrapper: str, key: Edge) -> Syntax:
    """Blocks of <invoke name="f"><parameter name="key">value</parameter></invoke>, with a prefix to each tag."""
    return Syntax(
        {
            "text": _text(f"<{wrapper}>", to="calls"),
            "calls": Expect({f'<{prefix}invoke name="': Edge("name", Act.BEGIN), f"</{wrapper}>": Edge("text")}),
            "name": Text(Sink.TAKEN, {'">': Edge("parameters", Act.NAME)}),
            "parameters": Expect(
                {f'<{prefix}parameter name="': Edge("key"), f"</{prefix}invoke>": Edge("calls", Act.CLOSE)}
            ),
            "key": Text(Sink.TAKEN, {'">': key}),
            "value": Text(Sink.VALUE, {f"</{prefix}parameter>": Edge("parameters", Act.VALUE)}),
        },
        begins=(f"<{wrapper}>",),
    )


DEEPSEEK_V32 = _invocations(
    "｜DSML｜",
    "｜DSML｜function_calls",
    Edge("value", Act.KEY, pattern=re.compile(r'^(?P<key>.*?)"\s+string="(?P<raw>true|false)$', re.DOTALL)),
)
MINIMAX_M2 = _invocations("", "minimax:tool_call", Edge("value", Act.KEY))

# section begin, call begin, functions.f:0, argument begin, JSON, call end, …, section end
KIMI_K2 = Syntax(
    {
        "text": _text("<|tool_calls_section_begin|>", to="calls"),
        "calls": Expect({"<|tool_call_begin|>": Edge("name", Act.BEGIN), "<|tool_calls_section_end|>": Edge("text")}),
        "name": Text(
            Sink.TAKEN,
            {
                "<|tool_call_argument_begin|>": Edge(
                    "arguments",
                    Act.NAME,
                    pattern=re.compile(r"^\s*(?P<id>(?:functions\.)?(?P<name>\S+?)(?::\d+)?)\s*$"),
                )
            },
        ),
        "arguments": JsonArguments("end"),
        "end": Expect({"<|tool_call_end|>": Edge("calls", Act.CLOSE)}),
    },
    begins=("<|tool_calls_section_begin|>",),
)

# Messages, each with a header that says for whom it is: a channel, or a function.
_HEADER = Edge(
    "final",
    routes=(
        Edge("arguments", Act.NAME, pattern=re.compile(r"to=(?:functions\.)?(?P<name>[^\s<]+)")),
        Edge("analysis", pattern=re.compile(r"<\|channel\|>\s*analysis")),
        Edge("final", pattern=re.compile("")),
    ),
)
_NEXT_HEADER = {"<|start|>": Edge("header", Act.BEGIN), "<|channel|>": Edge("header", Act.BEGIN, keeps=True)}
_MESSAGE_ENDS = {mark: Edge("between", Act.PART) for mark in ("<|end|>", "<|return|>", "<|call|>")}
_CALL_ENDS = {mark: Edge("between", Act.CLOSE) for mark in ("<|end|>", "<|return|>", "<|call|>")}
HARMONY = Syntax(
    {
        "start": Expect(
            {mark: Edge("header", keeps=True) for mark in ("<|channel|>", "to=")} | {"<|start|>": Edge("header")}
        ),
        "header": Text(Sink.TAKEN, {"<|message|>": _HEADER}),
        "analysis": Text(Sink.REASONING, {**_MESSAGE_ENDS, **_NEXT_HEADER}),
        "final": Text(Sink.CONTENT, {**_MESSAGE_ENDS, **_NEXT_HEADER}),
        "arguments": JsonArguments("call end"),
        "call end": Expect({**_CALL_ENDS, **_NEXT_HEADER}),
        "between": Expect(_NEXT_HEADER, otherwise=Edge("final")),
        "text": Text(Sink.CONTENT, {**_MESSAGE_ENDS, **_NEXT_HEADER}),
    },
    start="start",
)

# By the names of --tool-call-parser.
TOOL_SYNTAXES: Mapping[str, Syntax] = {
    "qwen": HERMES,
    "qwen25": HERMES,
    "hermes": HERMES,
    "qwen3_coder": QWEN3_CODER,
    "llama3": LLAMA3,
    "pythonic": PYTHONIC,
    "llama4": PYTHONIC,
    "mistral": MISTRAL,
    "deepseekv3": DEEPSEEK_V3,
    "deepseekv31": DEEPSEEK_V31,
    "deepseekv32": DEEPSEEK_V32,
    "kimi_k2": KIMI_K2,
    "glm": GLM,
    "glm45": GLM,
    "glm47": GLM,
    "gpt-oss": HARMONY,
    "minimax-m2": MINIMAX_M2,
    "json": JSON,
}
