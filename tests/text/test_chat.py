"""Chat messages become prompts, by templates that are not trusted."""

import json
import time
from pathlib import Path
from typing import Any

import pytest

from corymb.models.errors import BrokenModel
from corymb.models.toy_folders import write_byte_tokenizer
from corymb.serve.chat import ChatTemplate, TemplateError, load_chat_template
from corymb.serve.messages import read_messages, with_short_ids
from corymb.serve.tokenizer import Ends

ENDS = Ends("<s>", "</s>")
HELLO = [{"role": "user", "content": "Hello"}]
CALL = [
    {"role": "user", "content": "q"},
    {
        "role": "assistant",
        "content": None,
        "tool_calls": [{"id": "1", "function": {"name": "f", "arguments": '{"x": "é"}'}}],
    },
    {"role": "tool", "tool_call_id": "1", "content": "r"},
]
CALL_TEXT = '<tool_call>\n{"name": "f", "arguments": {"x": "é"}}\n</tool_call>'


def render(source: str, messages: list[Any] = HELLO, **options: Any) -> str:
    return ChatTemplate(source, ENDS).render(read_messages("messages", messages), **options)


@pytest.fixture
def chatml(tmp_path: Path) -> ChatTemplate:
    """The template of the byte tokenizer."""
    write_byte_tokenizer(tmp_path)
    template = load_chat_template(tmp_path)
    assert template is not None
    return template


def test_default_template_is_chatml(chatml: ChatTemplate) -> None:
    messages = [
        {"role": "system", "content": "Be kind."},
        {"role": "user", "content": "A\n"},
        {"role": "assistant", "content": ""},
        {"role": "user", "content": [{"type": "text", "text": "B "}, {"type": "text", "text": "C"}]},
    ]
    assert chatml.render(read_messages("messages", messages)) == (
        "<|im_start|>system\nBe kind.<|im_end|>\n"
        "<|im_start|>user\nA\n<|im_end|>\n"
        "<|im_start|>assistant\n<|im_end|>\n"
        "<|im_start|>user\nB C<|im_end|>\n"
        "<|im_start|>assistant\n"
    )
    assert chatml.render(HELLO, add_generation_prompt=False) == "<|im_start|>user\nHello<|im_end|>\n"


def test_default_template_shows_tool_calls_and_results(chatml: ChatTemplate) -> None:
    assert chatml.render(read_messages("messages", CALL)) == (
        "<|im_start|>user\nq<|im_end|>\n"
        f"<|im_start|>assistant\n{CALL_TEXT}<|im_end|>\n"
        "<|im_start|>tool\nr<|im_end|>\n"
        "<|im_start|>assistant\n"
    )


def test_template_that_knows_no_tool_calls_gets_them_as_text() -> None:
    source = "{% for m in messages %}[{{ m['role'] + ': ' + m['content'] }}]{% endfor %}"
    assert render(source, CALL) == f"[user: q][assistant: {CALL_TEXT}][tool: r]"
    spoken = [*CALL[:1], CALL[1] | {"content": "Let me see."}, CALL[2]]
    assert render(source, spoken) == f"[user: q][assistant: Let me see.\n{CALL_TEXT}][tool: r]"


def test_template_that_knows_tool_calls_gets_their_arguments_as_objects() -> None:
    source = "{% for m in messages %}{% for c in m.tool_calls %}{{ c.function.arguments.x }}{% endfor %}{% endfor %}"
    assert render(source, CALL) == "é"


def test_nothing_is_rendered_as_none(chatml: ChatTemplate) -> None:
    messages = read_messages("messages", [*CALL, {"role": "assistant", "content": None, "name": None}])
    text = chatml.render(messages)
    assert "None" not in text
    assert "null" not in text


def test_template_has_what_hugging_face_gives_it() -> None:
    assert render("{{ bos_token }}|{{ eos_token }}|{{ tools }}|{{ documents }}") == "<s>|</s>|None|None"
    assert render("{{ {'a': '<é>'} | tojson }}") == '{"a": "<é>"}'
    assert render("{{ [1, 2] | tojson(indent=1) }}") == "[\n 1,\n 2\n]"
    assert render("{% for i in range(9) %}{% if i == 2 %}{% break %}{% endif %}{{ i }}{% endfor %}") == "01"
    assert render("{% generation %}{{ messages[0].content }}{% endgeneration %}!") == "Hello!"
    assert render("  {% if true %}\n  a\n  {% endif %}\nb") == "  a\nb"
    assert len(render("{{ strftime_now('%Y-%m-%d') }}")) == 10
    assert render("{{ range(2, 8, 2) | list }}{{ range(5)[1] }}{{ range(3) | length }}") == "[2, 4, 6]13"
    assert (
        render("{% set ns = namespace(n=0) %}{% for m in messages %}{% set ns.n = ns.n + 1 %}{% endfor %}{{ ns.n }}")
        == "1"
    )


def test_tools_and_variables_reach_the_template() -> None:
    tools = [{"type": "function", "function": {"name": "f"}}]
    assert render("{{ tools[0].function.name }}", tools=tools) == "f"
    assert render("{{ enable_thinking }}", kwargs={"enable_thinking": False}) == "False"
    assert render("{{ messages[0].content }}", kwargs={"messages": "mine"}) == "Hello"


def test_refusal_of_the_template_is_passed_on_word_for_word() -> None:
    with pytest.raises(TemplateError, match=r"^Roles must alternate!$"):
        render("{{ raise_exception('Roles must alternate!') }}")


@pytest.mark.parametrize(
    "source",
    [
        "{{ messages[0].content + 1 }}",
        "{{ messages[7].content.x }}",
        "{{ nothing() }}",
        "{{ 1 / 0 }}",
        "{{ 'a' | int('b', base=99) + [] }}",
        "{{ {} | tojson(indent='x', cls=3) }}",
        "{% macro f(x) %}{{ f(x) }}{% endmacro %}{{ f(1) }}",
    ],
)
def test_failing_template_is_a_template_error(source: str) -> None:
    with pytest.raises(TemplateError) as caught:
        render(source)
    assert str(caught.value)


@pytest.mark.parametrize(
    "source",
    [
        "{{ ''.__class__ }}",
        "{{ ''.__class__.__mro__[1].__subclasses__() }}",
        "{{ cycler.__init__.__globals__.os.popen('id').read() }}",
        "{{ lipsum.__globals__['os'].getcwd() }}",
        "{{ self.__init__.__globals__ }}",
        "{{ messages[0]['__class__'] | attr('__mro__') }}",
        "{{ raise_exception.__globals__ }}",
        "{{ range.__globals__ }}",
        "{{ messages.append(1) }}",
        "{{ messages[0].update({'content': 'x'}) }}",
        "{{ (messages | map(attribute='__class__') | list)[0].__mro__ }}",
        "{% set x = '{0.__class__}'.format(messages) %}{{ x }}",
        "{{ joiner.__call__.__globals__ }}",
        "{% include '/etc/passwd' %}",
        "{% import 'os' as os %}",
    ],
)
def test_template_cannot_reach_python(source: str) -> None:
    messages = [{"role": "user", "content": "Hello"}]
    try:
        text = ChatTemplate(source, ENDS).render(messages)
    except TemplateError:
        text = ""
    assert text in ("", "Hello")
    assert messages == HELLO


@pytest.mark.parametrize(
    "source",
    [
        "{% for i in range(10 ** 9) %}{% endfor %}",
        "{% for i in range(100000) %}{% for j in range(100000) %}{% endfor %}{% endfor %}",
        "{% for i in range(10 ** 9) %}x{% endfor %}",
        "{{ 'a' * 10 ** 9 }}",
        "{{ [0] * 10 ** 9 }}",
        "{{ 2 ** (10 ** 9) }}",
        "{% macro f(n) %}{% if n %}{{ f(n - 1) }}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(60) }}",
    ],
)
def test_endless_template_is_stopped(source: str) -> None:
    begun_s = time.monotonic()
    with pytest.raises(TemplateError):
        render(source)
    assert time.monotonic() - begun_s < 5


def test_long_conversation_renders_in_time(chatml: ChatTemplate) -> None:
    messages = [{"role": "user", "content": "word " * 100}] * 2000
    assert len(chatml.render(messages)) > 1_000_000


def write(folder: Path, **config: Any) -> Path:
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return folder


def load(folder: Path, override: str | None = None) -> str:
    template = load_chat_template(folder, override)
    assert template is not None
    return template.render(HELLO)


def test_template_is_found_where_models_keep_it(tmp_path: Path) -> None:
    assert load_chat_template(tmp_path) is None
    assert load_chat_template(write(tmp_path, eos_token="</s>")) is None
    assert load(write(tmp_path, chat_template="config {{ bos_token }}", bos_token={"content": "<b>"})) == "config <b>"
    (tmp_path / "chat_template.json").write_text('{"chat_template": "json"}')
    assert load(tmp_path) == "json"
    (tmp_path / "chat_template.jinja").write_text("jinja")
    assert load(tmp_path) == "jinja"
    (tmp_path / "mine").write_text("mine")
    assert load(tmp_path, tmp_path / "mine") == "mine"


def test_model_with_two_templates_uses_one_for_tools(tmp_path: Path) -> None:
    named = [{"name": "default", "template": "plain"}, {"name": "tool_use", "template": "{{ tools | length }} tools"}]
    template = load_chat_template(write(tmp_path, chat_template=named))
    assert template is not None
    assert template.takes_tools
    assert template.render(HELLO) == "plain"
    assert template.render(HELLO, tools=[{}]) == "1 tools"


def test_template_that_cannot_be_used_is_refused_at_the_start(tmp_path: Path) -> None:
    with pytest.raises(BrokenModel, match="not valid Jinja"):
        load_chat_template(write(tmp_path, chat_template="{% if %}"))
    with pytest.raises(BrokenModel, match="nowhere is no file, nor one of the names chatml"):
        load_chat_template(tmp_path, str(tmp_path / "nowhere"))


def test_template_is_chosen_by_file_or_name(tmp_path: Path) -> None:
    templates = [{"name": "default", "template": "plain"}, {"name": "rag", "template": "for documents"}]
    write(tmp_path, chat_template=templates)
    other = tmp_path / "other.jinja"
    other.write_text("from a file")
    assert load(tmp_path, str(other)) == "from a file"
    assert load(tmp_path, "rag") == "for documents"
    assert load(tmp_path, "chatml") == "<|im_start|>user\nHello<|im_end|>\n<|im_start|>assistant\n"


def test_template_without_tools_gets_them_in_the_system_message() -> None:
    source = "{% for m in messages %}[{{ m.role }}: {{ m.content }}]{% endfor %}"
    tool = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
    alone = render(source, HELLO, tools=[tool])
    assert alone.startswith("[system: ")
    assert json.dumps(tool) in alone
    assert '{"name": "…", "arguments": {…}}' in alone
    beside = render(source, [{"role": "system", "content": "Be kind."}, *HELLO], tools=[tool])
    assert beside.startswith("[system: Be kind.\n\n")
    assert beside.endswith("[user: Hello]")
    assert render(source, HELLO) == "[user: Hello]"


def test_arguments_are_text_for_templates_that_add_them_to_text() -> None:
    source = "{{ 'x' + messages[1].tool_calls[0].function.arguments + 'y' }}"
    assert render(source, CALL) == 'x{"x": "é"}y'


def test_ids_are_short_where_templates_want_them_so() -> None:
    messages = read_messages("messages", CALL)
    short = with_short_ids(messages)
    (made,) = {short[1]["tool_calls"][0]["id"], short[2]["tool_call_id"]}
    assert len(made) == 9
    assert made.isalnum()
    assert with_short_ids(short) == short
    assert messages == read_messages("messages", CALL), "the given ones stay as they are"


@pytest.mark.weights
def test_real_template_gives_the_prompt_that_the_model_knows(smollm2: Path) -> None:
    assert load(smollm2) == (
        "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n"
        "<|im_start|>user\nHello<|im_end|>\n"
        "<|im_start|>assistant\n"
    )


@pytest.mark.weights
def test_base_model_has_no_template(gemma3: Path) -> None:
    assert load_chat_template(gemma3) is None
