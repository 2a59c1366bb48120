"""What an answer must follow so that its tool calls are the ones that were asked for, in the model's own format."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import msgspec

from corymb.models.grammar_backends import END_POINT, with_end_apart
from corymb.scheduler.messages import Grammar
from corymb.serve import grammars
from corymb.serve import tool_syntaxes as of
from corymb.serve.errors import ApiError
from corymb.serve.grammars import Wanted
from corymb.serve.reasoning_syntaxes import MarkIds, Thinking
from corymb.serve.syntax import Syntax
from corymb.serve.tools import Function, ToolUse

Format = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class CallForm:
    """How calls are written: before + begin, arguments, end + separator + begin, … + after."""

    begin: str  # of one call; {name} stands for the function's name
    end: str
    before: str = ""
    after: str = ""
    separator: str = ""
    style: str = "json"  # of the arguments
    trigger: str = ""  # with this text calls begin, and nothing else does; "" where only required calls can be told
    infix: Sequence[Format] = ()  # what stands between the name and the arguments
    parallel: bool = True  # an answer can hold several


_OBJECT = CallForm(begin='{"name": "{name}", "parameters": ', end="}")
_LIST = replace(_OBJECT, before="[", after="]", separator=", ")
_QWEN3_CODER = CallForm(
    begin="<tool_call>\n<function={name}>\n",
    end="\n</function>\n</tool_call>",
    separator="\n",
    style="qwen_xml",
    trigger="<tool_call>",
)
FORMS: Mapping[Syntax, CallForm] = {
    of.HERMES: CallForm(
        begin='<tool_call>\n{"name": "{name}", "arguments": ',
        end="}\n</tool_call>",
        separator="\n",
        trigger="<tool_call>",
    ),
    of.QWEN3_CODER: _QWEN3_CODER,
    of.QWEN3_CODER_EXACT: _QWEN3_CODER,
    of.GLM: CallForm(
        begin="<tool_call>{name}\n", end="\n</tool_call>", separator="\n", style="glm_xml", trigger="<tool_call>"
    ),
    of.LLAMA3: replace(_OBJECT, separator="; ", trigger='{"name": "'),
    of.JSON: _LIST,
    of.PYTHONIC: _LIST,
    of.MISTRAL: CallForm(
        before="[TOOL_CALLS][",
        begin='{"name": "{name}", "arguments": ',
        end="}",
        after="]",
        separator=", ",
        trigger="[TOOL_CALLS]",
    ),
    of.DEEPSEEK_V3: CallForm(
        before="<｜tool▁calls▁begin｜>",
        begin="<｜tool▁call▁begin｜>function<｜tool▁sep｜>{name}\n```json\n",
        end="\n```<｜tool▁call▁end｜>",
        after="<｜tool▁calls▁end｜>",
        separator="\n",
        trigger="<｜tool▁calls▁begin｜>",
    ),
    of.DEEPSEEK_V31: CallForm(
        before="<｜tool▁calls▁begin｜>",
        begin="<｜tool▁call▁begin｜>{name}<｜tool▁sep｜>",
        end="<｜tool▁call▁end｜>",
        after="<｜tool▁calls▁end｜>",
        trigger="<｜tool▁calls▁begin｜>",
    ),
    of.DEEPSEEK_V32: CallForm(
        before="<｜DSML｜function_calls>\n",
        begin='<｜DSML｜invoke name="{name}">\n',
        end="\n</｜DSML｜invoke>\n",
        after="</｜DSML｜function_calls>",
        style="deepseek_xml",
        trigger="<｜DSML｜function_calls>",
    ),
    of.MINIMAX_M2: CallForm(
        before="<minimax:tool_call>\n",
        begin='<invoke name="{name}">\n',
        end="\n</invoke>\n",
        after="</minimax:tool_call>",
        style="minimax_xml",
        trigger="<minimax:tool_call>",
    ),
    of.KIMI_K2: CallForm(
        before="<|tool_calls_section_begin|>",
        begin="<|tool_call_begin|>functions.{name}:",
        end="<|tool_call_end|>",
        after="<|tool_calls_section_end|>",
        trigger="<|tool_calls_section_begin|>",
        infix=(
            {"type": "regex", "pattern": r"\d{1,4}"},
            {"type": "const_string", "value": "<|tool_call_argument_begin|>"},
        ),
    ),
    # The mark behind the arguments is one of the model's end tokens: it can always follow what is complete.
    of.HARMONY: CallForm(
        begin="<|channel|>commentary to=functions.{name} <|constrain|>json<|message|>",
        end="",
        trigger="<|channel|>commentary to=functions.",
        parallel=False,
    ),
}
_FINAL = {"type": "const_string", "value": "<|channel|>final<|message|>"}
_ANALYSIS = "<|channel|>analysis<|message|>"
_NEXT_MESSAGE = {"type": "const_string", "value": "<|start|>assistant"}
_ANY_TEXT: Format = {"type": "any_text", "excludes": [chr(END_POINT)]}
_GAP = {"type": "regex", "pattern": r"[ \n]{0,4}"}


def call_syntax(syntax: Syntax | None, use: ToolUse, answer: Wanted | None) -> Syntax | None:
    """How the calls of an answer are read. Where a grammar tells the model what to write and cannot spell the format
    of its family, or none is known, calls are a JSON list."""
    if syntax is None:
        return of.JSON if use.required else None
    if use.required or answer is not None or any(function.strict for function in use.functions):
        return _HELD.get(syntax, syntax)
    return syntax


_HELD = {of.PYTHONIC: of.JSON, of.QWEN3_CODER: of.QWEN3_CODER_EXACT}  # how models write that follow a grammar


def answer_grammar(
    syntax: Syntax | None, use: ToolUse | None, answer: Wanted | None, *, harmony: bool
) -> Wanted | None:
    """What an answer must follow, apart from reasoning; None for anything. `answer`: what one without calls follows."""
    if use is None:
        return answer if answer is None or not harmony else _wanted(_final(answer), like=answer)
    strict = any(function.strict for function in use.functions)
    if syntax is None:
        if strict:
            raise _unenforceable(use.param, "`strict` needs a server started with --tool-call-parser.")
        return answer
    form = FORMS[syntax]
    if use.required:
        return _wanted_calls(_calls(form, use, enforced=True), use)
    if answer is not None:
        calls = _wanted_calls(_calls(form, use, enforced=False), use).grammar
        answer = replace(answer, grammar=with_end_apart(answer.grammar))  # as that of calls is
        said = _final(answer) if harmony else _format(answer.grammar)
        return _wanted({"type": "or", "elements": [_format(calls), said]}, like=answer)
    if not strict and (use.parallel or not form.parallel):
        return None
    if not form.trigger:
        message = "calls in this model's format cannot be enforced unless `tool_choice` is 'required' or a function."
        raise _unenforceable(use.param if strict else "parallel_tool_calls", message)
    return _wanted_calls(_text_with_calls(form, use), use)


def after_reasoning(wanted: Wanted, thinking: Thinking, marks: MarkIds, *, opened: bool) -> Wanted:
    """The same for an answer that may think first."""
    if opened:
        return replace(wanted, grammar=msgspec.structs.replace(wanted.grammar, after=marks.closing))
    if thinking.harmony:
        thought = [_tag_around(_ANALYSIS, _ANY_TEXT, "<|end|>"), _NEXT_MESSAGE]
    else:
        # A mark that is a token is not spelled out: else what the answer begins with would compete with its letters.
        begin = {"type": "token", "token": marks.opening[0]} if len(marks.opening) == 1 else thinking.opening
        thought = [_tag_around(begin, _ANY_TEXT, thinking.closing)]
        if not wanted.spaced:
            thought.append(_GAP)  # the reader drops it
    optional = {"type": "optional", "content": {"type": "sequence", "elements": thought}}
    return _wanted({"type": "sequence", "elements": [optional, _format(wanted.grammar)]}, like=wanted)


def _unenforceable(param: str, why: str) -> ApiError:
    return ApiError("unsupported_parameter", f"`{param}`: {why}", param=param)


def _wanted(form: Format, *, like: Wanted) -> Wanted:
    """For parts that have been checked."""
    made = grammars.from_structural_tag(like.param, {"type": "structural_tag", "format": form}).grammar
    return replace(like, grammar=msgspec.structs.replace(made, spells_end=like.grammar.spells_end))


def _wanted_calls(form: Format, use: ToolUse) -> Wanted:
    """Raises ApiError for a function's schema."""
    made = grammars.from_structural_tag(use.param, {"type": "structural_tag", "format": form})
    return replace(made, spaced=False)


def _calls(form: CallForm, use: ToolUse, *, enforced: bool) -> Format:
    """Calls and nothing else."""
    calls = {
        "type": "tags_with_separator",
        "tags": [_tag(form, function, enforced=enforced) for function in use.functions],
        "separator": form.separator,
        "at_least_one": True,
        "stop_after_first": not (use.parallel and form.parallel),
    }
    if not form.before:
        return calls
    return _tag_around(form.before, calls, form.after)


def _tag_around(begin: str | Format, content: Format, end: str) -> Format:
    return {"type": "tag", "begin": begin, "content": content, "end": end}


def _text_with_calls(form: CallForm, use: ToolUse) -> Format:
    """Text in which every call is right."""
    single = not (use.parallel and form.parallel)
    tags = [_calls(form, use, enforced=False)]
    if not form.before:
        tags = [_tag(form, function, enforced=False) for function in use.functions]
    return {"type": "triggered_tags", "triggers": [form.trigger], "tags": tags, "stop_after_first": single}


def _tag(form: CallForm, function: Function, *, enforced: bool) -> Format:
    # Where the client did not ask for the schema to be kept, any object may stand: schemas that cannot be enforced
    # are common, and no reason to refuse a request.
    schema = function.parameters if enforced or function.strict else {"type": "object"}
    content: Format = {"type": "json_schema", "json_schema": schema, "style": form.style}
    if form.infix:
        content = {"type": "sequence", "elements": [*form.infix, content]}
    return _tag_around(form.begin.replace("{name}", function.name), content, form.end)


def _final(answer: Wanted) -> Format:
    return {"type": "sequence", "elements": [_FINAL, _format(answer.grammar)]}


def _format(grammar: Grammar) -> Format:
    """A grammar as a part of a structural tag."""
    if grammar.kind == "structural_tag":
        form: Format = json.loads(grammar.text)["format"]
        return form
    return {"type": "grammar", "grammar": grammar.text}
