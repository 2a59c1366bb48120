"""Every family's way of writing calls is read, wherever its text is cut."""

import json
from typing import Any

import pytest

from corymb.serve.events import ToolArguments, ToolOpened
from corymb.serve.tool_syntaxes import TOOL_SYNTAXES
from tests.parsing.reading import check_cuts, events, read, reading

PARIS = ("get_weather", {"city": "Paris"})
RICH = {"city": 'São "Paulo" </tool_call>', "days": 3, "opt": {"deep": [{}, "]}"]}}
NOW: tuple[str, Any] = ("now", {})


def fenced(name: str, arguments: str) -> str:
    return f"<｜tool▁call▁begin｜>function<｜tool▁sep｜>{name}\n```json\n{arguments}\n```<｜tool▁call▁end｜>"


def v31(name: str, arguments: str) -> str:
    return f"<｜tool▁call▁begin｜>{name}<｜tool▁sep｜>{arguments}<｜tool▁call▁end｜>"


def kimi(name: str, index: int, arguments: str) -> str:
    return f"<|tool_call_begin|>functions.{name}:{index}<|tool_call_argument_begin|>{arguments}<|tool_call_end|>"


def hermes(name: str, arguments: str) -> str:
    return f'<tool_call>\n{{"name": "{name}", "arguments": {arguments}}}\n</tool_call>'


RICH_JSON = json.dumps(RICH, ensure_ascii=False)
DEEPSEEK, DEEPSEEK_END = "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"
KIMI, KIMI_END = "<|tool_calls_section_begin|>", "<|tool_calls_section_end|>"

# parser, text, content, calls
CASES: list[tuple[str, str, str, list[tuple[str, Any]]]] = [
    ("qwen", hermes("get_weather", RICH_JSON), "", [("get_weather", RICH)]),
    (
        "qwen",
        f"Let me see.\n{hermes('now', '{}')}\n{hermes('get_weather', RICH_JSON)}\n",
        "Let me see.",
        [NOW, ("get_weather", RICH)],
    ),
    ("qwen", f"A\n{hermes('now', '{}')}\nB", "A\nB", [NOW]),
    ("hermes", '<tool_call>{"arguments": {"city": "Paris"}, "name": "get_weather"}</tool_call>', "", [PARIS]),
    (
        "hermes",
        r'<tool_call>{"name": "get_weather", "arguments": "{\"city\": \"P\\u00e4r\\ud83d\\ude00\"}"}</tool_call>',
        "",
        [("get_weather", {"city": "Pär😀"})],
    ),
    ("hermes", '<tool_call>{"id": [1, {"a": "]"}], "name": "now", "arguments": null}</tool_call>', "", [NOW]),
    ("hermes", '<tool_call>{"name": "now"}</tool_call>', "", [NOW]),
    (
        "qwen3_coder",
        '<tool_call>\n<function=get_weather>\n<parameter=city>\n\nSão "P"\\\n\n</parameter>\n<parameter=days>\n3\n'
        "</parameter>\n<parameter=opt>\n{'a': True, 'b': None}\n</parameter>\n<parameter=unit>\nc\n</parameter>\n"
        "</function>\n"
        "</tool_call>",
        "",
        [("get_weather", {"city": '\nSão "P"\\\n', "days": 3, "opt": {"a": True, "b": None}, "unit": "c"})],
    ),
    (
        "qwen3_coder",
        "So:\n<function=now>\n</function>\n<tool_call>\n<function=get_weather>\n<parameter=city>\nParis\n</function>\n"
        "</tool_call>",
        "So:",
        [NOW, PARIS],
    ),
    (
        "glm45",
        "<tool_call>get_weather\n<arg_key>city</arg_key>\n<arg_value>Paris</arg_value>\n<arg_key>days</arg_key>\n"
        "<arg_value>3</arg_value>\n</tool_call>\n<tool_call>now\n</tool_call>",
        "",
        [("get_weather", {"city": "Paris", "days": 3}), NOW],
    ),
    (
        "glm47",
        "<tool_call>get_weather<arg_key>city</arg_key><arg_value>12</arg_value><arg_key>note</arg_key>"
        "<arg_value>null</arg_value></tool_call><tool_call>now</tool_call>",
        "",
        [("get_weather", {"city": "12", "note": None}), NOW],
    ),
    ("llama3", '{"name": "get_weather", "parameters": {"city": "Paris"}}', "", [PARIS]),
    (
        "llama3",
        '<|python_tag|>{"type": "function", "name": "now", "parameters": {}}; {"name": "get_weather", "parameters": '
        '{"city": "Paris"}}',
        "",
        [NOW, PARIS],
    ),
    (
        "llama3",
        '[{"name": "now", "parameters": {}}, {"name": "get_weather", "arguments": {"city": "Paris"}}]',
        "",
        [NOW, PARIS],
    ),
    (
        "json",
        '[{"name": "now", "parameters": {}}, {"name": "get_weather", "parameters": {"city": "Paris"}}]',
        "",
        [NOW, PARIS],
    ),
    (
        "pythonic",
        "[now(), get_weather(city=\"S\\u00e3o 'P'\\n\", days=-3, opt={'a': [True, None, 1.5,], 2: ('x',)}, tags=[])]",
        "",
        [
            NOW,
            ("get_weather", {"city": "São 'P'\n", "days": -3, "opt": {"a": [True, None, 1.5], "2": ["x"]}, "tags": []}),
        ],
    ),
    ("pythonic", "<|python_start|>[get_weather(city='Paris')]<|python_end|>", "", [PARIS]),
    (
        "mistral",
        'Hm.[TOOL_CALLS] [{"name": "get_weather", "arguments": {"city": "Paris"}}, {"name": "now", "arguments": {}}]',
        "Hm.",
        [PARIS, NOW],
    ),
    (
        "mistral",
        '[TOOL_CALLS]get_weather[ARGS]{"city": "Paris"}[TOOL_CALLS]now[CALL_ID]abc123DEF[ARGS]{}',
        "",
        [PARIS, NOW],
    ),
    ("mistral", '[TOOL_CALLS]get_weather{"city": "Paris"}', "", [PARIS]),
    (
        "deepseekv3",
        f"{DEEPSEEK}{fenced('get_weather', RICH_JSON)}\n{fenced('now', '{}')}{DEEPSEEK_END}",
        "",
        [("get_weather", RICH), NOW],
    ),
    (
        "deepseekv31",
        f"OK{DEEPSEEK}{v31('get_weather', RICH_JSON)}{v31('now', '{}')}{DEEPSEEK_END}",
        "OK",
        [("get_weather", RICH), NOW],
    ),
    (
        "deepseekv32",
        '<｜DSML｜function_calls>\n<｜DSML｜invoke name="get_weather">\n<｜DSML｜parameter name="city" string="true">12'
        '</｜DSML｜parameter>\n<｜DSML｜parameter name="days" string="false">5</｜DSML｜parameter>\n</｜DSML｜invoke>\n'
        '<｜DSML｜invoke name="now">\n</｜DSML｜invoke>\n</｜DSML｜function_calls>',
        "",
        [("get_weather", {"city": "12", "days": 5}), NOW],
    ),
    (
        "kimi_k2",
        f"{KIMI}{kimi('get_weather', 0, RICH_JSON)}{kimi('now', 1, '{}')}{KIMI_END}",
        "",
        [("get_weather", RICH), NOW],
    ),
    (
        "minimax-m2",
        '<minimax:tool_call>\n<invoke name="get_weather">\n<parameter name="city">Paris</parameter>\n</invoke>\n'
        '<invoke name="now">\n</invoke>\n</minimax:tool_call>',
        "",
        [PARIS, NOW],
    ),
    (
        "gpt-oss",
        "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>commentary<|message|>One moment."
        "<|end|><|start|>assistant<|channel|>commentary to=functions.get_weather <|constrain|>json<|message|>"
        '{"city":"Paris"}<|call|>',
        "One moment.",
        [PARIS],
    ),
    (
        "gpt-oss",
        " to=functions.now<|channel|>commentary json<|message|>{}<|call|>"
        "<|start|>assistant<|channel|>final<|message|>OK",
        "OK",
        [NOW],
    ),
]


@pytest.mark.parametrize(("parser", "text", "content", "calls"), CASES, ids=lambda value: str(value)[:24])
def test_calls_are_the_same_for_every_cut(parser: str, text: str, content: str, calls: list[tuple[str, Any]]) -> None:
    said = check_cuts(reading(parser), text)
    assert said.decoded() == calls
    assert said.content == content


def test_every_family_is_tried() -> None:
    tried = {TOOL_SYNTAXES[parser] for parser, *_ in CASES}
    assert set(TOOL_SYNTAXES.values()) == tried


PLAIN = [
    ("qwen", "a < b, <tool>, <tool_cal"),
    ("qwen", " \n"),
    ("qwen", "<tool_call>not json</tool_call>"),
    ("qwen", '<tool_call>{"name": 1}</tool_call>'),
    ("qwen", '<tool_call>{"arguments": {}}</tool_call>'),
    ("qwen", '<tool_call>{"name": "' + "x" * 300 + '"}</tool_call>'),
    ("qwen", '<tool_call>{"na'),
    ("llama3", '{"answer": "text"}'),
    ("llama3", '{"name": "get_weather"}'),
    ("llama3", '{"name": "Ada", "arguments": {"a": 1}}'),
    ("llama3", "  [1, 2]"),
    ("llama3", '<|python_tag|>search.call(query="x")'),
    ("pythonic", "[1, 2, 3]"),
    ("pythonic", "[see](http://x)"),
    ("pythonic", "[unknown(a=1)]"),
    ("pythonic", "[get_weather('Paris')]"),
    ("mistral", "[TOOL_CALLS]]"),
    ("glm45", "<tool_call>" + "g" * 300),
    ("deepseekv3", f"{DEEPSEEK}Hello"),
    ("kimi_k2", "<|tool_calls_section_begin|>Hello"),
    ("json", "Hello [1]"),
]


@pytest.mark.parametrize(("parser", "text"), PLAIN)
def test_what_is_no_call_is_content_to_the_letter(parser: str, text: str) -> None:
    said = check_cuts(reading(parser), text)
    assert (said.content, said.calls) == (text, [])


def test_a_call_that_breaks_off_keeps_what_it_had() -> None:
    said = check_cuts(reading("qwen"), '<tool_call>{"name": "get_weather", "arguments": {"city": "Par')
    assert said.calls == [("get_weather", '{"city": "Par')]
    said = check_cuts(reading("qwen3_coder"), "<tool_call><function=get_weather><parameter=city>\nPar")
    assert said.calls == [("get_weather", '{"city": "Par')]


def test_a_call_whose_last_mark_is_missing_is_whole() -> None:
    said = check_cuts(
        reading("qwen3_coder"), "<tool_call><function=get_weather><parameter=city>\nParis\n</parameter>\n"
    )
    assert said.decoded() == [PARIS]


def test_a_mark_behind_a_call_that_was_cut_is_no_content() -> None:
    for length in range(len("</tool_call>")):
        said = check_cuts(reading("qwen"), '<tool_call>{"name": "f", "arguments": {}}' + "</tool_call>"[:length])
        assert (said.content, said.decoded()) == ("", [("f", {})])


def test_arguments_stream_as_they_are_generated() -> None:
    for parser, before, after in [
        ("qwen", '<tool_call>{"name": "get_weather", "arguments": {"city": "', '"}}</tool_call>'),
        ("qwen3_coder", "<tool_call><function=get_weather><parameter=city>\n", "\n</parameter></function></tool_call>"),
        ("glm45", "<tool_call>get_weather\n<arg_key>city</arg_key><arg_value>", "</arg_value></tool_call>"),
        ("pythonic", '[get_weather(city="', '")]'),
        ("gpt-oss", '<|channel|>commentary to=functions.get_weather<|message|>{"city":"', '"}<|call|>'),
    ]:
        parser_of_one = reading(parser).parser()
        opened = parser_of_one.feed(before)
        assert isinstance(opened[0], ToolOpened), parser
        for letter in "Paris":
            (event,) = parser_of_one.feed(letter)
            assert event == ToolArguments(0, letter), parser
        parser_of_one.feed(after)


def test_ids_fit_the_family() -> None:
    def ids(parser: str, text: str) -> list[str]:
        return [event.id for event in events(reading(parser), text) if isinstance(event, ToolOpened)]

    first, second = ids("qwen", hermes("now", "{}") * 2)
    assert first != second
    assert first.startswith("call_")
    (short,) = ids("mistral", "[TOOL_CALLS]now[ARGS]{}")
    assert len(short) == 9
    assert short.isalnum()
    assert ids("mistral", "[TOOL_CALLS]now[CALL_ID]abc123DEF[ARGS]{}") == ["abc123DEF"]
    assert ids("kimi_k2", f"{KIMI}{kimi('now', 7, '{}')}{KIMI_END}") == ["functions.now:7"]


def test_a_function_that_was_not_offered_is_a_call_where_marks_say_so() -> None:
    assert read(reading("qwen"), hermes("other", "{}")).calls == [("other", "{}")]


def test_half_of_a_surrogate_pair_becomes_the_replacement_character() -> None:
    said = check_cuts(
        reading("hermes"), r'<tool_call>{"name": "a\ud83d", "arguments": "{\"x\": \"\\ud83d\"}"}</tool_call>'
    )
    assert said.calls == [("a\ufffd", r'{"x": "\ud83d"}')]


def test_many_functions_declare_their_types() -> None:
    text = "<tool_call>f{}</tool_call>".format(
        "".join(
            f"<arg_key>{key}</arg_key><arg_value>{value}</arg_value>"
            for key, value in [
                ("s", "true"),
                ("b", "True"),
                ("i", "7"),
                ("l", "['a', 1]"),
                ("u", "7"),
                ("e", "1"),
                ("w", "word"),
                ("n", "nan"),
            ]
        )
    )
    properties = {
        "s": {"type": "string"},
        "b": {"type": "boolean"},
        "i": {"type": ["integer", "null"]},
        "l": {"type": "array"},
        "e": {"enum": ["1", "2"]},
        "n": {"type": "number"},
    }
    said = check_cuts(reading("glm45", functions={"f": {"properties": properties}}), text)
    assert said.decoded() == [
        ("f", {"s": "true", "b": True, "i": 7, "l": ["a", 1], "u": 7, "e": "1", "w": "word", "n": "nan"})
    ]
