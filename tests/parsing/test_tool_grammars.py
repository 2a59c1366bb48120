"""Whatever a grammar for calls lets a model write, it is read back as calls that keep their schemas."""

import json
import random
from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np
import pytest
import xgrammar

from corymb.models.grammar_backends import Vocabulary, make_backend
from corymb.scheduler.messages import Grammar
from corymb.serve.errors import ApiError
from corymb.serve.grammars import Wanted, from_regex, from_structural_tag
from corymb.serve.output_parser import Reading
from corymb.serve.reasoning_syntaxes import REASONING, MarkIds
from corymb.serve.tool_grammars import FORMS, after_reasoning, answer_grammar, call_syntax
from corymb.serve.tool_syntaxes import HARMONY, QWEN3_CODER_EXACT, TOOL_SYNTAXES
from corymb.serve.tools import Function, ToolUse
from tests.parsing.reading import Said, check_cuts, read

CITY = {
    "type": "object",
    "properties": {"city": {"type": "string"}, "days": {"type": "integer"}, "opt": {"type": "boolean"}},
    "required": ["city", "days", "opt"],
    "additionalProperties": False,
}
NONE: dict[str, Any] = {"type": "object", "properties": {}, "additionalProperties": False}
PARSERS = sorted({syntax: name for name, syntax in TOOL_SYNTAXES.items()}.values())
BY_NAME = pytest.mark.parametrize("parser", PARSERS)


def use(*, required: bool, parallel: bool = True, strict: bool = False) -> ToolUse:
    functions = (Function("get_weather", None, CITY, strict), Function("now", None, NONE, strict))
    return ToolUse(functions, required, parallel)


def vocabulary() -> xgrammar.TokenizerInfo:
    tokens = [bytes([value]) for value in range(256)] + [b"</s>"]
    return xgrammar.TokenizerInfo(tokens, vocab_size=257, stop_token_ids=[256])


COMPILER = xgrammar.GrammarCompiler(vocabulary(), max_threads=1)


def bounded(node: Any) -> Any:
    """The same tag with short runs of white space, so that walks end."""
    if isinstance(node, list):
        return [bounded(item) for item in node]
    if not isinstance(node, dict):
        return node
    extra = {"max_whitespace_cnt": 1} if node.get("type") == "json_schema" else {}
    return {key: item if key == "json_schema" else bounded(item) for key, item in node.items()} | extra


def walk(grammar: Grammar, marks: Sequence[str], seed: int, *, first: str = "") -> str:
    """A text that the grammar allows, at random; it begins with `first`. Marks that have begun tend to be completed."""
    assert grammar.kind == "structural_tag"
    tag = json.dumps(bounded(json.loads(grammar.text)))
    matcher = xgrammar.GrammarMatcher(COMPILER.compile_structural_tag(tag))
    mask = xgrammar.allocate_token_bitmask(1, 257)
    choose = random.Random(seed)
    written = ""
    assert matcher.accept_string(first)
    written += first
    for _ in range(4000):
        matcher.fill_next_token_bitmask(mask)
        words = [int(word) & 0xFFFFFFFF for word in mask[0]]
        allowed = {token for token in range(257) if words[token // 32] >> (token % 32) & 1}
        if 256 in allowed and (len(allowed) == 1 or choose.random() < 0.5):
            return written
        piece = _next(written, marks, allowed, choose)
        assert matcher.accept_string(piece), (seed, written, piece)
        written += piece
    raise AssertionError(f"no end in sight (seed {seed}): {written[-200:]!r}")


def _next(written: str, marks: Sequence[str], allowed: set[int], choose: random.Random) -> str:
    begun = [mark[size] for mark in marks for size in range(1, len(mark)) if written.endswith(mark[:size])]
    going_on = [char for char in begun if char.encode()[0] in allowed]
    long = len(written) > 300
    if going_on and (long or choose.random() < 0.9):
        return "/" if long and "/" in going_on else choose.choice(going_on)
    if len(allowed) > 60:  # free text
        ends = [char for char in '"<>\n' if ord(char) in allowed]
        letters = [char for char in "ab 1é/[{" if char.encode()[0] in allowed]
        return choose.choice(ends if ends and (long or choose.random() < 0.4) else letters)
    ascii_only = [chr(token) for token in sorted(allowed) if token < 128]
    if ascii_only:
        return choose.choice(ascii_only)
    (char,) = {mark[size] for mark in marks for size in range(len(mark)) if mark[size].encode()[0] in allowed}
    return char


def keeps_schemas(said: Said) -> None:
    for name, arguments in said.calls:
        value = json.loads(arguments)
        if name == "get_weather":
            assert set(value) == {"city", "days", "opt"}
            assert isinstance(value["city"], str)
            assert type(value["days"]) is int
            assert type(value["opt"]) is bool
        else:
            assert (name, value) == ("now", {})


def reading(parser: str, wanted: ToolUse, answer: Wanted | None = None) -> Reading:
    syntax = call_syntax(TOOL_SYNTAXES[parser], wanted, answer)
    thinking = REASONING["gpt-oss"] if syntax is HARMONY else None
    return Reading(syntax=syntax, thinking=thinking, functions=wanted.parameters)


def every_mark(parser: str) -> list[str]:
    """What a grammar of the family spells, too."""
    form = FORMS[TOOL_SYNTAXES[parser]]
    begins = [form.begin.replace("{name}", name) for name in ("get_weather", "now")]
    return [*TOOL_SYNTAXES[parser].marks, *begins, form.before, form.after, form.separator, form.end]


def grammar(parser: str, wanted: ToolUse, answer: Wanted | None = None) -> Grammar | None:
    syntax = call_syntax(TOOL_SYNTAXES[parser], wanted, answer)
    made = answer_grammar(syntax, wanted, answer, harmony=syntax is HARMONY)
    if made is None:
        return None
    assert made.param == ("tools" if answer is None else answer.param)
    return made.grammar


@BY_NAME
@pytest.mark.parametrize("parallel", [True, False])
def test_required_calls_are_all_there_is(parser: str, parallel: bool) -> None:
    wanted = use(required=True, parallel=parallel)
    made = grammar(parser, wanted)
    assert made is not None
    for seed in range(6):
        text = walk(made, every_mark(parser), seed)
        said = check_cuts(reading(parser, wanted), text) if seed == 0 else read(reading(parser, wanted), text)
        assert said.calls, text
        assert parallel or len(said.calls) == 1
        assert said.content == ""
        keeps_schemas(said)


@BY_NAME
def test_calls_in_text_keep_their_schemas_where_functions_are_strict(parser: str) -> None:
    wanted = use(required=False, strict=True)
    if parser in ("json", "llama4"):  # its calls can stand at the beginning only
        with pytest.raises(ApiError, match="cannot be enforced"):
            grammar(parser, wanted)
        return
    made = grammar(parser, wanted)
    assert made is not None
    trigger = FORMS[TOOL_SYNTAXES[parser]].trigger

    for seed in range(4):
        said = read(reading(parser, wanted), walk(made, every_mark(parser), seed, first=trigger))
        assert said.calls
        keeps_schemas(said)


def test_nothing_is_enforced_where_nothing_was_asked() -> None:
    for parser in PARSERS:
        assert grammar(parser, use(required=False)) is None


@BY_NAME
def test_a_format_for_answers_leaves_calls_possible(parser: str) -> None:
    wanted = use(required=False)
    schema = Wanted(Grammar("json_schema", r'root ::= "\"aa\"" | "\"bb\""'), "response_format")
    made = grammar(parser, wanted, schema)
    assert made is not None
    answers = set()
    for seed in range(12):
        said = read(reading(parser, wanted, schema), walk(made, every_mark(parser), seed))
        answers.add(said.content)
        assert bool(said.calls) != bool(said.content), walk(made, every_mark(parser), seed)
    assert answers & {'"aa"', '"bb"'}
    assert "" in answers, "calls, too"


TOKENS = [bytes([value]) for value in range(256)] + [b"", b"<think>", b"</think>"]
END, OPENING, CLOSING = 256, 257, 258
BACKEND = make_backend("xgrammar", Vocabulary(TOKENS, frozenset({END}), [END]))


def matches(made: Wanted, text: str, *, opened: bool = False) -> bool:
    """Whether an answer can be this text; `opened`: behind the token that opens a thought."""
    matcher = BACKEND.compile(made.grammar).matcher()
    return all(matcher.accept(token_id) for token_id in [OPENING] * opened + [*text.encode(), END])


TAG = {"type": "structural_tag", "format": {"type": "const_string", "value": "12"}}
THINK = REASONING["qwen3"]
SPELLED = MarkIds(tuple(b"<think>"), tuple(b"</think>"))


@pytest.mark.parametrize("answer", [from_regex("regex", "[0-9]{2}"), from_structural_tag("response_format", TAG)])
def test_a_thought_may_go_before_what_is_enforced(answer: Wanted) -> None:
    made = after_reasoning(answer, THINK, SPELLED, opened=False)
    assert (made.param, made.spaced) == (answer.param, answer.spaced)
    gap = not answer.spaced
    for text, right in [
        ("12", True),
        ("\n12", False),
        ("<think>y <{</think>12", True),
        ("<think>y</think>\n\n12", gap),
        ("<think>y</think>y", False),
        ("y", False),
    ]:
        assert matches(made, text) == right, text
    opened = after_reasoning(answer, THINK, MarkIds((260,), (261,)), opened=True)
    assert opened.grammar == msgspec.structs.replace(answer.grammar, after=(261,))


def test_a_mark_that_is_a_token_is_not_spelled_out() -> None:
    made = after_reasoning(from_regex("regex", "yes|no"), THINK, MarkIds((OPENING,), (CLOSING,)), opened=False)
    bits = np.zeros(-(-len(TOKENS) // 32), np.int32)
    BACKEND.compile(made.grammar).matcher().fill(bits)
    allowed = np.flatnonzero(np.unpackbits(bits.view(np.uint8), bitorder="little")[: len(TOKENS)])
    assert allowed.tolist() == [*b"ny", OPENING]
    assert matches(made, "a <</think>\n\nno", opened=True)
    assert not matches(made, "<think>a</think>no")
    assert not matches(made, "a \x04</think>no", opened=True), "the end is no part of a thought"


@pytest.mark.parametrize(
    ("pattern", "spaced"),
    [("yes", False), ("yes| no", True), ("(a? )?b", True), ("a?b", False), ("[^a]", True), ("(x{0}|\\s*y)", True)],
)
def test_a_pattern_may_begin_with_white_space(pattern: str, spaced: bool) -> None:
    assert from_regex("regex", pattern).spaced == spaced


def test_harmony_thinks_in_a_message_of_its_own() -> None:
    wanted = use(required=True)
    calls = answer_grammar(HARMONY, wanted, None, harmony=True)
    assert calls is not None
    made = after_reasoning(calls, REASONING["gpt-oss"], MarkIds(), opened=False)
    call = "<|channel|>commentary to=functions.now <|constrain|>json<|message|>{}"
    thought = "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant"
    for text, right in [(call, True), (thought + call, True), (f"{thought}<|channel|>final<|message|>x", False)]:
        assert matches(made, text) == right, text
    said = read(reading("gpt-oss", wanted), thought + call)
    assert (said.reasoning, said.calls) == ("Hm.", [("now", "{}")])


def test_every_format_has_a_form() -> None:
    assert {*TOOL_SYNTAXES.values(), QWEN3_CODER_EXACT} == set(FORMS)
