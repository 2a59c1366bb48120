"""Runs chat templates, which come with models, so that a bad one harms nothing: no attributes of Python, bounded work.

A template runs until a deadline that every call, attribute and loop over a range looks at, and may write a bounded
text. What is not bounded: one single filter or operator on a large value (sorting, joining), and memory while it runs.
"""

import json
import time
from contextvars import ContextVar
from datetime import datetime
from typing import Any

import jinja2
from jinja2 import meta, nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

MAX_TEXT_CHARS = 10 << 20
TIME_LIMIT_S = 1.0
_MAX_REPEAT_CHARS = 1 << 20
_MAX_POWER_BITS = 1024

# What Python itself raises while a template does something impossible: adding text to nothing, indexing too far.
_FAULTS = (jinja2.TemplateError, TypeError, ValueError, ArithmeticError, LookupError, AttributeError, RecursionError)

_deadline_s: ContextVar[float] = ContextVar("deadline_s", default=float("inf"))


class TemplateError(Exception):
    """A template refused its messages, or cannot be used; the text is the template's own where it gave one."""


def compile_template(source: str) -> jinja2.Template:
    """Compiles a chat template; raises TemplateError."""
    try:
        return _ENVIRONMENT.from_string(source)
    except jinja2.TemplateError as error:
        raise TemplateError(f"The chat template is not valid Jinja: {error}") from error


def variables(source: str) -> frozenset[str]:
    """The variables that a template reads and does not set itself."""
    return frozenset(meta.find_undeclared_variables(_ENVIRONMENT.parse(source)))


def run_template(template: jinja2.Template, values: dict[str, Any]) -> str:
    """Renders; raises TemplateError when the template refuses, fails or takes too much."""
    token = _deadline_s.set(time.monotonic() + TIME_LIMIT_S)
    parts: list[str] = []
    size = 0
    try:
        for part in template.generate(values):
            size += len(part)
            if size > MAX_TEXT_CHARS:
                raise TemplateError(f"The chat template wrote more than {MAX_TEXT_CHARS:,} characters.")
            _check_time()
            parts.append(part)
    except _FAULTS as error:
        raise TemplateError(str(error) or type(error).__name__) from error
    finally:
        _deadline_s.reset(token)
    return "".join(parts)


def _check_time() -> None:
    if time.monotonic() > _deadline_s.get():
        raise TemplateError(f"The chat template took longer than {TIME_LIMIT_S:g} s.")


class _Sandbox(ImmutableSandboxedEnvironment):
    """Looks at the clock wherever a template can be slow, and bounds the operators that make large values."""

    intercepted_binops = frozenset({"*", "**"})

    def call(self, context: Any, obj: Any, *args: Any, **kwargs: Any) -> Any:
        _check_time()
        return super().call(context, obj, *args, **kwargs)

    def getattr(self, obj: Any, attribute: str) -> Any:
        _check_time()
        return super().getattr(obj, attribute)

    def getitem(self, obj: Any, argument: Any) -> Any:
        _check_time()
        return super().getitem(obj, argument)

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        if operator == "*":
            for many, times in ((left, right), (right, left)):
                if isinstance(times, int) and isinstance(many, str | list | tuple):
                    _bound(len(many) * times, _MAX_REPEAT_CHARS)
        elif isinstance(left, int) and isinstance(right, int):
            _bound(left.bit_length() * right, _MAX_POWER_BITS)
        return super().call_binop(context, operator, left, right)


def _bound(size: int, limit: int) -> None:
    if size > limit:
        raise TemplateError("The chat template computes a value that is too large.")


class _Generation(Extension):
    """Renders `{% generation %}…{% endgeneration %}`, which marks an assistant's text for training, as its inside."""

    tags = {"generation"}  # noqa: RUF012

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _raise_exception(message: str) -> None:
    raise TemplateError(message)


def _strftime_now(form: str) -> str:
    return datetime.now().strftime(form)


def _range(*bounds: int) -> "_Ticking":
    return _Ticking(range(*bounds))


class _Ticking:
    """A range that looks at the clock in each round, so that empty loops end too."""

    def __init__(self, values: range) -> None:
        self._values = values

    def __len__(self) -> int:
        return len(self._values)

    def __getitem__(self, index: Any) -> Any:
        return self._values[index]

    def __iter__(self) -> Any:
        for value in self._values:
            _check_time()
            yield value


def _tojson(value: Any, ensure_ascii: bool = False, indent: int | None = None, **options: Any) -> str:
    # Not Jinja's own, which escapes for HTML.
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, **options)


def _environment() -> _Sandbox:
    # The options and extras that templates are written against: those of Hugging Face's own renderer.
    environment = _Sandbox(trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols, _Generation])
    environment.filters["tojson"] = _tojson
    environment.globals |= {"raise_exception": _raise_exception, "strftime_now": _strftime_now, "range": _range}
    return environment


_ENVIRONMENT = _environment()
