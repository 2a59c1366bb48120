"""What a client says about functions that the model may call."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from corymb.serve.errors import ApiError, invalid, shown
from corymb.serve.fields import Field, boolean

MAX_FUNCTIONS = 512
_NAME = re.compile(r"[A-Za-z0-9_.:-]{1,128}")
_NO_PARAMETERS: Mapping[str, Any] = {"type": "object", "properties": {}}

Values = Mapping[str, Any]
Mode = Literal["auto", "required", "none"]


@dataclass(frozen=True, slots=True)
class Function:
    """A function that was offered."""

    name: str
    description: str | None
    parameters: Mapping[str, Any]  # a JSON schema
    strict: bool

    def for_template(self) -> dict[str, Any]:
        """As chat templates print it."""
        about = {} if self.description is None else {"description": self.description}
        return {"type": "function", "function": {"name": self.name, **about, "parameters": self.parameters}}


@dataclass(frozen=True, slots=True)
class Choice:
    """Whether functions must be called, and which. `names` None: any that was offered."""

    mode: Mode
    names: tuple[str, ...] | None = None


@dataclass(frozen=True, slots=True)
class ToolUse:
    """What one request wants of functions."""

    functions: Sequence[Function]  # those that may be called
    required: bool
    parallel: bool  # several calls in one answer
    param: str = "tools"  # the field that offers them

    @property
    def parameters(self) -> dict[str, Any]:
        """The schema of each function's parameters, by name."""
        return {function.name: function.parameters for function in self.functions}

    def for_template(self) -> list[dict[str, Any]]:
        """As chat templates print them."""
        return [function.for_template() for function in self.functions]


def tool_fields() -> list[Field]:
    """Fields about functions, apart from `tools`, which makes the prompt too."""
    return [
        Field("tool_choice", "'auto', 'required', 'none', or an object that names functions", _read_choice),
        boolean("parallel_tool_calls"),
        Field("functions", "list of functions; the older name of `tools`, one call an answer", _read_functions),
        Field("function_call", "'auto', 'none', or an object with a function's name", _read_function_call),
    ]


def tools_field() -> Field:
    """Functions that the model may call."""
    return Field("tools", f"list of 1 to {MAX_FUNCTIONS} tools of type function", read_tools)


def tool_use(values: Values) -> ToolUse | None:
    """What checked values want; None where nothing is offered or nothing may be called. Raises ApiError."""
    param, choice_param = ("tools", "tool_choice") if "tools" in values else ("functions", "function_call")
    if "tools" in values and "functions" in values:
        raise invalid("functions", "is the older name of `tools`: send one of them.")
    functions: tuple[Function, ...] = values.get(param, ())
    for name in ("tool_choice", "function_call"):
        if name in values and (name != choice_param or not functions):
            raise invalid(name, f"needs `{'tools' if name == 'tool_choice' else 'functions'}`.")
    choice: Choice = values.get(choice_param, Choice("auto"))
    if not functions or choice.mode == "none":
        return None
    return ToolUse(
        functions=_chosen(functions, choice, choice_param),
        required=choice.mode == "required",
        parallel=param == "tools" and values.get("parallel_tool_calls", True),
        param=param,
    )


def _chosen(functions: tuple[Function, ...], choice: Choice, param: str) -> tuple[Function, ...]:
    if choice.names is None:
        return functions
    known = {function.name: function for function in functions}
    for name in choice.names:
        if name not in known:
            raise invalid(param, f"names {shown(name)}, which is none of the functions that were offered.")
    return tuple(known[name] for name in choice.names)


def read_tools(param: str, value: object) -> tuple[Function, ...]:
    """OpenAI's `tools`."""
    return _unique(param, [_read_tool(param, index, tool) for index, tool in enumerate(_list(param, value))])


def _read_functions(param: str, value: object) -> tuple[Function, ...]:
    return _unique(param, [_read_function(param, index, item) for index, item in enumerate(_list(param, value))])


def _list(param: str, value: object) -> list[object]:
    if not isinstance(value, list) or not 0 < len(value) <= MAX_FUNCTIONS:
        raise invalid(param, f"must be a list of 1 to {MAX_FUNCTIONS}, not {shown(value)}.")
    return value


def _unique(param: str, functions: list[Function]) -> tuple[Function, ...]:
    names = [function.name for function in functions]
    twice = next((name for name in names if names.count(name) > 1), None) if len(set(names)) < len(names) else None
    if twice is not None:
        raise invalid(param, f"offers the function {shown(twice)} twice.")
    return tuple(functions)


def _read_tool(param: str, index: int, tool: object) -> Function:
    kind = tool.get("type", "function") if isinstance(tool, dict) else None
    if not isinstance(tool, dict) or not isinstance(kind, str):
        raise invalid(param, f"must hold objects with a `type`; entry {index} is {shown(tool)}.")
    if kind != "function":
        message = f"`{param}`: entry {index} is of type {shown(kind)}; this server offers functions only."
        raise ApiError("unsupported_parameter", message, param=param)
    return _read_function(param, index, tool.get("function"))


def _read_function(param: str, index: int, function: object) -> Function:
    if not isinstance(function, dict):
        raise invalid(param, f"must describe each function with an object; entry {index} has {shown(function)}.")
    name = function.get("name")
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        what = "a name of 1 to 128 of A-Z a-z 0-9 _ - . :"
        raise invalid(param, f"must give each function {what}; entry {index} has {shown(name)}.")
    about, strict = function.get("description"), function.get("strict")
    if about is not None and not isinstance(about, str):
        raise invalid(param, f"must describe functions in text; {name} has {shown(about)}.")
    if strict is not None and not isinstance(strict, bool):
        raise invalid(param, f"must say true or false for `strict`; {name} has {shown(strict)}.")
    parameters = function.get("parameters")
    if parameters is not None and not isinstance(parameters, dict):
        raise invalid(param, f"must give parameters as a JSON schema object; {name} has {shown(parameters)}.")
    return Function(name, about, parameters or _NO_PARAMETERS, strict is True)


def _read_choice(param: str, value: object) -> Choice:
    if value in ("auto", "required", "none"):
        return Choice(value)
    kind = value.get("type") if isinstance(value, dict) else None
    if isinstance(value, dict) and kind == "function":
        return Choice("required", (_named(param, value.get("function")),))
    allowed = value.get("allowed_tools") if isinstance(value, dict) else None
    if kind == "allowed_tools" and isinstance(allowed, dict) and allowed.get("mode") in ("auto", "required"):
        names = tuple(_allowed(param, tool) for tool in _list(param, allowed.get("tools")))
        return Choice(allowed["mode"], tuple(dict.fromkeys(names)))
    example = '{"type": "function", "function": {"name": …}}'
    raise invalid(param, f"must be 'auto', 'required', 'none' or {example}, not {shown(value)}.")


def _allowed(param: str, tool: object) -> str:
    return _named(param, tool.get("function") if isinstance(tool, dict) else None)


def _read_function_call(param: str, value: object) -> Choice:
    if value in ("auto", "none"):
        return Choice(value)
    return Choice("required", (_named(param, value),))


def _named(param: str, function: object) -> str:
    name = function.get("name") if isinstance(function, dict) else None
    if not isinstance(name, str):
        raise invalid(param, f"must name a function as a string, not {shown(name)}.")
    return name
