"""What a template writes of an assistant's turn is what a model writes: read back, it is the turn that was sent."""

import itertools
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from corymb.serve.chat import ChatTemplate
from corymb.serve.events import ToolOpened
from corymb.serve.messages import read_messages, with_short_ids
from corymb.serve.output_parser import OutputParsers
from corymb.serve.recognition import recognise_reasoning, recognise_tools
from corymb.serve.tokenizer import Ends
from corymb.serve.tools import read_tools
from tests.parsing.reading import FUNCTIONS, TOKENIZER, check_cuts, events, reading

FOLDER = Path(__file__).parent / "templates"
ENDS = ("<|im_end|>", "<|eot_id|>", "<|eot|>", "</s>", "<｜end▁of▁sentence｜>", "<|user|>", "<|call|>", "<|end|>")


@dataclass(frozen=True)
class Family:
    """A template of the tests, and what its format can hold."""

    name: str
    start: str  # of an assistant's turn
    reasoning: str | None = None  # the parser that its template tells
    content: bool = True  # text may stand beside calls
    parallel: bool = True


FAMILIES = [
    Family("qwen", "<|im_start|>assistant\n", "qwen3"),
    Family("qwen3_coder", "<|im_start|>assistant\n"),
    Family("glm45", "<|assistant|>\n", "glm45"),
    Family("llama3", "<|start_header_id|>assistant<|end_header_id|>\n\n", content=False, parallel=False),
    Family("pythonic", "<|header_start|>assistant<|header_end|>\n\n", content=False),
    Family("mistral", "[/INST]"),
    Family("deepseekv3", "<｜Assistant｜>"),
    Family("deepseekv31", "<｜Assistant｜></think>", "deepseek-v3"),
    Family("kimi_k2", "assistant<|im_middle|>", "kimi_k2"),
    Family("gpt-oss", "<|start|>assistant", "gpt-oss", parallel=False),
]
BY_NAME = pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.name)
VALUES: list[dict[str, Any]] = [
    {"city": "Paris"},
    {"city": "12"},
    {"city": "São \"P\" 'x' \\ / {[<>]}", "days": -3},
    {"city": "two\n\nlines", "opt": {"a": [None, True, 1.5, {"b": ""}]}, "tags": ["x", "]"]},
    {"city": "", "unit": "c", "tags": []},
]


def template(name: str) -> ChatTemplate:
    return ChatTemplate((FOLDER / f"{name}.jinja").read_text(), Ends("<s>", "</s>"))


def call(index: int, name: str, arguments: dict[str, Any], *, as_text: bool = True) -> dict[str, Any]:
    given = json.dumps(arguments, ensure_ascii=False) if as_text else arguments
    return {"id": f"functions.{name}:{index}", "type": "function", "function": {"name": name, "arguments": given}}


def rendered(family: Family, *messages: dict[str, Any], **options: Any) -> str:
    read = with_short_ids(read_messages("messages", list(messages))) if family.name == "mistral" else None
    return template(family.name).render(read or read_messages("messages", list(messages)), **options)


def written(family: Family, turn: dict[str, Any]) -> str:
    """What the model would have to write for a turn."""
    text = rendered(family, {"role": "user", "content": "q"}, turn, add_generation_prompt=False)
    text = text[text.index(family.start) + len(family.start) :]
    ends = [text.rindex(end) for end in ENDS if end in text]
    return text[: max(ends)] if ends else text


@BY_NAME
def test_calls_come_back_as_they_were_sent(family: Family) -> None:
    how = reading(family.name)
    for arguments, as_text in itertools.product(VALUES, (True, False)):
        turn = {
            "role": "assistant",
            "content": None,
            "tool_calls": [call(0, "get_weather", arguments, as_text=as_text)],
        }
        said = check_cuts(how, written(family, turn).removeprefix("<think></think>"))
        assert said.decoded() == [("get_weather", arguments)]
        assert said.content == ""


@pytest.mark.parametrize("family", [family for family in FAMILIES if family.parallel], ids=lambda family: family.name)
def test_several_calls_beside_text(family: Family) -> None:
    calls = [call(0, "now", {}), call(1, "get_weather", VALUES[2])]
    content = "I look." if family.content else None
    turn = {"role": "assistant", "content": content, "tool_calls": calls}
    said = check_cuts(reading(family.name), written(family, turn).removeprefix("<think></think>"))
    assert said.decoded() == [("now", {}), ("get_weather", VALUES[2])]
    assert said.content == (content or "")


@BY_NAME
def test_templates_tell_the_format(family: Family) -> None:
    source = (FOLDER / f"{family.name}.jinja").read_text()
    assert recognise_tools(source) == family.name
    if family.reasoning is not None:
        assert recognise_reasoning(source) == family.reasoning


@BY_NAME
def test_functions_and_results_reach_the_prompt(family: Family) -> None:
    offered = [{"type": "function", "function": {"name": "get_weather", "parameters": FUNCTIONS["get_weather"]}}]
    tools = [function.for_template() for function in read_tools("tools", offered)]
    turn = {"role": "assistant", "content": None, "tool_calls": [call(0, "get_weather", {"city": "Paris"})]}
    result = {"role": "tool", "tool_call_id": "functions.get_weather:0", "content": "sunny"}
    prompt = rendered(family, {"role": "user", "content": "q"}, turn, result, tools=tools)
    assert "sunny" in prompt
    assert "Paris" in prompt
    assert '"tags"' in prompt
    assert "None" not in prompt


@pytest.mark.parametrize(
    ("name", "switch"), [("qwen", "enable_thinking"), ("glm45", "enable_thinking"), ("deepseekv31", "thinking")]
)
def test_the_prompt_says_whether_the_model_thinks(name: str, switch: str) -> None:
    parsers = OutputParsers(recognise_reasoning(template(name).source), None, TOKENIZER)
    messages = read_messages("messages", [{"role": "user", "content": "q"}])
    for on in (True, False):
        variables = {switch: on}
        prompt = template(name).render(messages, kwargs=variables)
        assert (parsers.thinking(prompt, variables) is not None) == on


def test_harmony_keeps_reasoning_apart_over_turns() -> None:
    family = FAMILIES[-1]
    turn = {"role": "assistant", "content": "Sunny.", "reasoning_content": "Look it up."}
    text = rendered(family, {"role": "user", "content": "q"}, turn, add_generation_prompt=False)
    said = check_cuts(reading("gpt-oss"), text[text.index(family.start) + len(family.start) : -len("<|end|>")])
    assert (said.reasoning, said.content) == ("Look it up.", "Sunny.")


def test_ids_of_kimi_come_back() -> None:
    family = next(family for family in FAMILIES if family.name == "kimi_k2")
    turn = {"role": "assistant", "content": None, "tool_calls": [call(3, "now", {})]}
    found = events(reading("kimi_k2"), written(family, turn))
    assert [event.id for event in found if isinstance(event, ToolOpened)] == ["functions.now:3"]
