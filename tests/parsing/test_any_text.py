"""Whatever a model writes, reading it gives the same for every cut, loses nothing, and takes linear work."""

import sys
import time

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from corymb.serve.reasoning_syntaxes import REASONING
from corymb.serve.syntax import Expect, Text
from corymb.serve.tool_syntaxes import TOOL_SYNTAXES
from tests.parsing.reading import events, read, reading, said

JUNK = [
    "a",
    "x y",
    " ",
    "\n",
    "\n\n",
    "é😀",
    '"',
    "'",
    "\\",
    "\\n",
    "\\u00e9",
    "\\ud83d",
    "{",
    "}",
    "[",
    "]",
    "(",
    ")",
    "=",
    ",",
    ":",
    "<",
    ">",
    ";",
    "```",
    "null",
    "1",
    "-1.5e3",
    "1_0",
    "True",
    '"name"',
    '"arguments": ',
    '{"name": "now", "arguments": {',
    "get_weather",
    "now",
    "city",
    "<think>",
    "</think>",
    "x" * 300,
]
PARSERS = sorted({syntax: name for name, syntax in TOOL_SYNTAXES.items()}.values())


def marks(parser: str) -> list[str]:
    found = {
        mark
        for state in TOOL_SYNTAXES[parser].states.values()
        if isinstance(state, Text | Expect)
        for mark in state.edges
    }
    return sorted(found)


@st.composite
def texts(draw, parser: str) -> list[str]:
    """A text in pieces, made of the family's own marks among other things, some of them cut."""
    words = draw(st.lists(st.sampled_from([*marks(parser), *JUNK]), max_size=24))
    text = "".join(words)
    cuts = sorted(draw(st.sets(st.integers(0, len(text)), max_size=12)))
    return [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]


@pytest.mark.parametrize("parser", PARSERS)
@settings(max_examples=120, deadline=None)
@given(data=st.data())
def test_every_cut_of_any_text_gives_the_same(parser: str, data) -> None:
    pieces = data.draw(texts(parser))
    how = reading(parser, data.draw(st.sampled_from([None, "qwen3", "deepseek-r1"])))
    whole = read(how, "".join(pieces))
    found = events(how, *pieces)
    assert said(found) == whole
    assert read(how, *"".join(pieces)) == whole
    msgspec.json.encode([msgspec.to_builtins(event) for event in found])


@pytest.mark.parametrize("name", sorted(REASONING))
@settings(max_examples=60, deadline=None)
@given(
    words=st.lists(
        st.sampled_from(["<think>", "</think>", "◁think▷", "◁/think▷", " ", "\n", "a", "<", "</thi", "◁"]), max_size=12
    )
)
def test_reasoning_alone_gives_the_same_for_every_cut(name: str, words: list[str]) -> None:
    text = "".join(words)
    how = reading(None, name, variables={"thinking": True})
    whole = read(how, text)
    for at in range(len(text)):
        assert read(how, text[:at], text[at:]) == whole


@settings(max_examples=300, deadline=None)
@given(text=st.text(alphabet="ab< >\n{}\"'\\:,[]/tol_cal"))
def test_text_without_marks_comes_out_to_the_letter(text: str) -> None:
    for parser in ("qwen", "mistral", "deepseekv31", "kimi_k2", "minimax-m2"):
        if not any(mark in text for mark in TOOL_SYNTAXES[parser].begins):
            assert read(reading(parser), text).content == text


def repeated(unit: str, num_chars: int) -> str:
    return (unit * (num_chars // len(unit) + 1))[:num_chars]


HOSTILE = [
    *((parser, "".join(marks(parser))) for parser in PARSERS),
    *((parser, mark) for parser in PARSERS for mark in TOOL_SYNTAXES[parser].begins),
    *((parser, mark[:-1]) for parser in PARSERS for mark in marks(parser) if len(mark) > 1),
    ("qwen", '<tool_call>{"x": ['),
    ("qwen", '<tool_call>{"name": "now", "arguments": {"a": "\\'),
    ("qwen", '<tool_call>{"name": "now", "arguments": "\\ud83d\\'),
    ("qwen", '<tool_call>{"name": "now"}</tool_call>\n'),
    ("qwen", " "),
    ("qwen", "<"),
    ("qwen3_coder", "<function=f><parameter=a>\n"),
    ("qwen3_coder", "<function=f><parameter=a>\n\n\n</parameter>"),
    ("glm45", "<tool_call>f<arg_key>k</arg_key><arg_value>["),
    ("llama3", '{"name": "now", "parameters": {}};'),
    ("llama3", '{"name": '),
    ("pythonic", "[now(a=[1, {'b': '\\"),
    ("pythonic", "[now(a=" + "1" * 200 + ","),
    ("mistral", "[TOOL_CALLS]a b c "),
    ("kimi_k2", "<|tool_calls_section_begin|><|tool_call_begin|>:1:1:1"),
    ("gpt-oss", "<|channel|>analysis<|message|>a<|end|><|start|>"),
]


def work(parser: str, text: str, size: int) -> int:
    """Calls of functions, Python's and C's, while the text is read in pieces of some size."""
    how = reading(parser, "qwen3")
    num_calls = 0

    def count(frame, event, argument) -> None:
        nonlocal num_calls
        num_calls += event in ("call", "c_call")

    pieces = [text[at : at + size] for at in range(0, len(text), size)]
    events(how, *pieces[:10])  # compiles what is compiled once
    sys.setprofile(count)
    try:
        events(how, *pieces)
    finally:
        sys.setprofile(None)
    return num_calls


@pytest.mark.parametrize(("parser", "unit"), HOSTILE)
def test_work_grows_with_the_text_and_not_with_its_square(parser: str, unit: str) -> None:
    for size in (1, 50):
        small = work(parser, repeated(unit, 1_000), size)
        large = work(parser, repeated(unit, 4_000), size)
        assert large <= 5 * small, (size, small, large)


@pytest.mark.parametrize(("parser", "unit"), HOSTILE)
def test_a_long_hostile_text_is_read_at_once(parser: str, unit: str) -> None:
    """What C functions do cannot be counted. 200 kB take about 0.1 s; with quadratic work they would take minutes."""
    text = repeated(unit, 200_000)
    begun_s = time.process_time()
    read(reading(parser, "qwen3"), text)
    assert time.process_time() - begun_s < 10


def test_little_is_held_back() -> None:
    how = reading("qwen", "qwen3")
    parser = how.parser()
    for piece in ["<think>", "a" * 1000, "</thin", "king?", "</think>", "b" * 1000, "<tool_ca"]:
        before = len(said(parser.feed(piece)).content)
        assert before in (0, 1000)
    assert said(parser.end()).content == "<tool_ca"
