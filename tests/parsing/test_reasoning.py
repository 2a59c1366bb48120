"""Reasoning is told apart from the answer, and neither leaks into the other."""

import pytest

from corymb.serve.events import Content, Reasoning
from corymb.serve.output_parser import OutputParsers
from tests.parsing.reading import TOKENIZER, Said, check_cuts, reading

TEXT = "<think>weigh < it</think>Answer </thin done"
SPLIT = Said(content="Answer </thin done", reasoning="weigh < it")


@pytest.mark.parametrize("name", ["deepseek-r1", "qwen3", "qwen3-thinking", "glm45", "kimi_k2", "minimax", "step3"])
def test_marks_around_reasoning(name: str) -> None:
    variables = {"thinking": True}
    assert check_cuts(reading(None, name, variables=variables), TEXT) == SPLIT
    opened = reading(None, name, prompt="…<think>\n", variables=variables)
    assert check_cuts(opened, TEXT.removeprefix("<think>")) == SPLIT
    assert check_cuts(opened, TEXT) == SPLIT


def test_white_space_around_reasoning_is_not_part_of_anything() -> None:
    said = check_cuts(reading(None, "qwen3"), "\n<think>\n Hm.\n\nSo.\n</think>\n\nYes. \n")
    assert said == Said(content="Yes. \n", reasoning="Hm.\n\nSo.")


def test_reasoning_that_does_not_end_is_all_reasoning() -> None:
    assert check_cuts(reading(None, "qwen3"), "<think>on and on </thi") == Said(reasoning="on and on </thi")
    assert check_cuts(reading(None, "deepseek-r1"), "on and on") == Said(reasoning="on and on")


def test_no_reasoning_where_none_was_opened() -> None:
    assert check_cuts(reading(None, "qwen3"), " Yes <think>") == Said(content=" Yes <think>")
    assert check_cuts(reading(None, "qwen3"), "<thin") == Said(content="<thin")


@pytest.mark.parametrize(
    "options",
    [
        {"variables": {"enable_thinking": False}},
        {"prompt": "<|im_start|>assistant\n<think>\n\n</think>\n\n"},
        {"separates": False},
    ],
)
def test_reasoning_that_is_switched_off_is_not_looked_for(options) -> None:
    assert check_cuts(reading(None, "qwen3", **options), TEXT) == Said(content=TEXT)


def test_a_family_that_thinks_only_when_asked() -> None:
    assert check_cuts(reading(None, "deepseek-v3"), TEXT) == Said(content=TEXT)
    assert check_cuts(reading(None, "deepseek-v3", variables={"thinking": True}), TEXT) == SPLIT


def test_kimi_has_marks_of_its_own() -> None:
    assert check_cuts(reading(None, "kimi"), "◁think▷a </think> b◁/think▷c") == Said(
        content="c", reasoning="a </think> b"
    )


def test_calls_follow_reasoning() -> None:
    text = '<think>Use <tools>?</think>\n\nOK\n<tool_call>{"name": "now", "arguments": {}}</tool_call>'
    assert check_cuts(reading("qwen", "qwen3"), text) == Said("OK", "Use <tools>?", [("now", "{}")])


def test_a_call_ends_reasoning_where_the_family_forgets_to() -> None:
    call = '<tool_call>{"name": "now", "arguments": {}}</tool_call>'
    assert check_cuts(reading("qwen", "qwen3"), f"<think>So {call}") == Said("", "So", [("now", "{}")])
    without_tools = check_cuts(reading(None, "qwen3"), f"<think>So {call}</think>x")
    assert without_tools == Said("x", f"So {call}")


HARMONIC = (
    "<|channel|>analysis<|message|>First.<|end|><|start|>assistant<|channel|>analysis<|message|>Then.<|end|>"
    "<|start|>assistant<|channel|>final<|message|>Yes < no.<|return|>"
)


@pytest.mark.parametrize("options", [{"reasoning": "gpt-oss"}, {"tools": "gpt-oss"}])
def test_harmony_is_read_whole_whichever_flag_names_it(options) -> None:
    assert check_cuts(reading(**options), HARMONIC) == Said("Yes < no.", "First.\n\nThen.")


def test_harmony_without_separation_has_no_headers_in_the_content() -> None:
    said = check_cuts(reading(None, "gpt-oss", separates=False), HARMONIC)
    assert said.reasoning == ""
    assert "<|" not in said.content


def test_harmony_text_without_headers_is_content() -> None:
    assert check_cuts(reading(None, "gpt-oss"), "Just <text>.") == Said("Just <text>.")


def test_without_flags_text_is_content() -> None:
    how = reading()
    assert not how.looks
    assert check_cuts(how, TEXT) == Said(TEXT)


def test_only_special_tokens_that_mean_something_are_shown() -> None:
    def shown(tools: str | None, reasoning: str | None) -> list[str]:
        token_ids = OutputParsers(reasoning, tools, TOKENIZER).shown_specials(reading(tools, reasoning))
        return [TOKENIZER.token_text(token_id) for token_id in token_ids]

    assert shown(None, None) == []
    assert shown(None, "qwen3") == ["<think>", "</think>"]
    assert shown("qwen", None) == ["<tool_call>", "</tool_call>"]
    assert shown("mistral", "deepseek-r1") == ["<think>", "</think>"]


def test_the_end_of_reasoning_as_tokens() -> None:
    assert OutputParsers("qwen3", None, TOKENIZER).mark_ids.closing == (261,)
    assert OutputParsers("kimi", None, TOKENIZER).mark_ids.closing == tuple("◁/think▷".encode())
    assert OutputParsers(None, "qwen", TOKENIZER).mark_ids.closing == ()


def test_reasoning_can_come_in_one_piece() -> None:
    how = reading("qwen", "qwen3", streams=False)
    parser = how.parser()
    assert [parser.feed(piece) for piece in ("<think>", "a ", "b")] == [[], [], []]
    assert parser.feed("</think>\n\nc") == [Reasoning("a b"), Content("c")]
    assert check_cuts(how, TEXT) == SPLIT
    call = '<tool_call>{"name": "now", "arguments": {}}</tool_call>'
    assert check_cuts(how, f"<think>a</think>{call}") == Said("", "a", [("now", "{}")])
    assert check_cuts(how, "<think>a") == Said("", "a")


NOW = '<tool_call>{"name": "now", "arguments": {}}</tool_call>'
BROKEN_OFF = [
    (f"<think>So {NOW}</think>\n\nDone.", Said("Done.", "So", [("now", "{}")])),
    (f"<think>So {NOW}\n{NOW} </think> Done </think>.", Said("Done </think>.", "So", [("now", "{}")] * 2)),
    (f"<think>So {NOW} hm </think> Done.", Said("hm  Done.", "So", [("now", "{}")])),
    (f"<think>So </thi{NOW}nk> Done.", Said("nk> Done.", "So </thi", [("now", "{}")])),
    (f"<think>{NOW}</think>", Said("", "", [("now", "{}")])),
    (
        '<think>So <tool_call>{"name": "now", "arguments": {"a": "</think>"}}</tool_call></think>x',
        Said("x", "So", [("now", '{"a": "</think>"}')]),
    ),
    ("<think>A <tool_call> would do.</think>\n\nDone.", Said("Done.", "A <tool_call> would do.")),
    (f"<think>A <tool_call> or {NOW} x</think>y", Said("xy", "A <tool_call> or", [("now", "{}")])),
    ("<think>A <tool_call> would do", Said("", "A <tool_call> would do")),
    (f"<think>A <tool_call> </think>B {NOW}</think>", Said("B</think>", "A <tool_call>", [("now", "{}")])),
]


@pytest.mark.parametrize(("text", "expected"), BROKEN_OFF)
def test_the_mark_of_a_thought_that_a_call_broke_off_means_nothing(text: str, expected: Said) -> None:
    assert check_cuts(reading("qwen", "qwen3"), text) == expected
    opened = reading("qwen", "qwen3", prompt="…<think>\n")
    assert check_cuts(opened, text.removeprefix("<think>")) == expected


def test_white_space_behind_reasoning_can_belong_to_the_answer() -> None:
    how = reading(None, "qwen3", keeps_space=True)
    assert check_cuts(how, "<think> a \n</think>\n yes ") == Said("\n yes ", "a")
    assert check_cuts(how, "<think>a</think> ") == Said(" ", "a")
    assert check_cuts(how, " yes") == Said(" yes")
