"""A grammar that is refused after the request was read still names the field that asked for it, in every dialect.

The servers here follow no grammars, and so refuse every one where one that fails to compile is refused.
"""

import pytest

from tests.http.client import complete, native, post, refused
from tests.http.conftest import simulated

SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
JSON_SCHEMA = {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA}}
MESSAGES = [{"role": "user", "content": "q"}]
FUNCTION = {"name": "f", "parameters": SCHEMA}
TOOLS = [{"type": "function", "function": FUNCTION}]
STRICT = [{"type": "function", "function": FUNCTION | {"strict": True}}]
CHAT = [
    ({"response_format": {"type": "json_object"}}, "response_format"),
    ({"response_format": JSON_SCHEMA}, "response_format"),
    ({"json_schema": SCHEMA}, "json_schema"),
    ({"guided_json": SCHEMA}, "guided_json"),
    ({"regex": "a+"}, "regex"),
    ({"guided_regex": " a+"}, "guided_regex"),
    ({"ebnf": 'root ::= "a"'}, "ebnf"),
    ({"guided_grammar": 'root ::= "a"'}, "guided_grammar"),
    ({"guided_choice": ["a", "b"]}, "guided_choice"),
    ({"structured_outputs": {"regex": "a+"}}, "structured_outputs.regex"),
    ({"structured_outputs": {"json_object": True}}, "structured_outputs.json_object"),
    ({"structural_tag": {"format": {"type": "any_text"}}}, "structural_tag"),
    ({"tools": TOOLS, "tool_choice": "required"}, "tools"),
    ({"tools": STRICT}, "tools"),
    ({"tools": STRICT, "parallel_tool_calls": False}, "tools"),
    ({"functions": [FUNCTION], "function_call": {"name": "f"}}, "functions"),
    ({"tools": TOOLS, "response_format": JSON_SCHEMA}, "response_format"),
]
DIALECTS = [
    (
        "/v1/responses",
        {"input": "q", "text": {"format": {"type": "json_schema", "name": "x", "schema": SCHEMA}}},
        "text.format.schema",
    ),
    (
        "/v1/messages",
        {
            "messages": MESSAGES,
            "max_tokens": 5,
            "output_config": {"format": {"type": "json_schema", "schema": SCHEMA}},
        },
        "output_config.format.schema",
    ),
    ("/api/chat", {"messages": MESSAGES, "format": SCHEMA}, "format"),
    ("/api/generate", {"prompt": "q", "format": "json"}, "format"),
]
KINDS = [{}, {"reasoning_parser": "qwen3"}, {"reasoning_parser": "deepseek-r1"}, {"tool_call_parser": "gpt-oss"}]


@pytest.fixture(scope="module", params=KINDS, ids=str)
def server(request):
    with simulated("tape", **{"tool_call_parser": "hermes"} | request.param) as running:
        yield running


@pytest.mark.parametrize(("fields", "param"), CHAT, ids=lambda value: str(value)[:40])
def test_chats_name_their_field(server, fields, param: str) -> None:
    error = refused(post(server, "/v1/chat/completions", {"messages": MESSAGES, **fields}), 400)
    assert error["param"].split(".json_schema")[0] == param
    assert f"`{error['param']}`" in error["message"]
    if "tools" not in fields and "functions" not in fields:
        assert refused(complete(server, "q", **fields), 400)["param"] == error["param"]
        assert refused(native(server, "q", fields), 400)["param"] == f"sampling_params.{error['param']}"


@pytest.mark.parametrize(("path", "body", "named"), DIALECTS, ids=[path for path, _, _ in DIALECTS])
def test_other_dialects_name_theirs(server, path: str, body, named: str) -> None:
    answer = post(server, path, body)
    assert answer.status_code == 400
    assert f"`{named}`" in answer.text
