"""The OpenAPI document says what the code reads."""

import re

import jsonschema
import pytest

from corymb.serve.chat_completions import chat_fields
from corymb.serve.completions import completion_fields
from corymb.serve.errors import ApiError
from corymb.serve.fields import numerals_below
from corymb.serve.native_fields import native_sampling_fields
from corymb.serve.settings import HttpSettings
from tests.http.conftest import simulated
from tests.http.tables import _INFO

FIELDS = {
    f"{place}.{name}": field
    for place, table in {
        "chat": chat_fields(_INFO, HttpSettings()),
        "completion": completion_fields(_INFO, HttpSettings()),
        "sampling": native_sampling_fields(_INFO.vocab_size),
    }.items()
    for name, field in table.items()
}
KINDS = {"integer", "number", "boolean", "string"}


@pytest.fixture(scope="module")
def document(simulated_tape) -> dict:
    return simulated_tape.client.get("/openapi.json").json()


def test_every_route_is_in_the_document_but_the_files_of_the_page(document, simulated_tape) -> None:
    routes = {route.path.replace("{id:path}", "{id}") for route in simulated_tape.app.routes}
    told = {path for path in routes if path not in ("/", "/openapi.json") and not path.startswith("/web/")}
    assert set(document["paths"]) == told
    assert len(told) > 20


def test_every_field_is_in_the_document(document) -> None:
    body = document["paths"]["/v1/chat/completions"]["post"]["requestBody"]["content"]["application/json"]["schema"]
    assert set(body["properties"]) == {name.removeprefix("chat.") for name in FIELDS if name.startswith("chat.")}
    assert body["required"] == ["messages"]


YES_NO = {"type": "yes_no", "question": "?", "id": "q"}
ANSWERED = [
    ("get", "/api/tags", None),
    ("get", "/api/ps", None),
    ("get", "/api/version", None),
    ("get", "/v1/loads", None),
    ("post", "/api/show", {}),
    ("post", "/api/embed", {"input": ["a", "b"]}),
    ("post", "/v1/embeddings", {"input": "a"}),
    ("post", "/v1/score", {"query": "a", "items": "b", "label_token_ids": [97]}),
    ("post", "/v1/decisions", {"input": "a", "questions": [YES_NO], "return_prompt_token_ids": True}),
    ("post", "/pause_generation", {"mode": "in_place"}),
    ("post", "/continue_generation", {}),
]


def test_answers_are_as_the_document_says() -> None:
    with simulated("tape", hidden_size=4) as server:
        paths = server.client.get("/openapi.json").json()["paths"]
        for method, path, body in ANSWERED:
            answer = server.client.request(method, path, json=body)
            assert answer.status_code == 200, answer.text
            schema = paths[path][method]["responses"]["200"]["content"]["application/json"]["schema"]
            jsonschema.Draft202012Validator(schema).validate(answer.json())


def taken(field, value) -> bool:
    try:
        field.read(field.name, value)
    except ApiError:
        return False
    return True


@pytest.mark.parametrize(
    "name", [name for name, field in FIELDS.items() if field.schema.get("type") in KINDS and field.read]
)
def test_bounds_in_the_document_are_those_of_the_reader(name) -> None:
    field = FIELDS[name]
    schema = field.schema
    kinds = {
        "integer": (5, "x", True, 1.5),
        "number": (0.5, "x", True),
        "boolean": (True, "x", 1),
        "string": ("x", 5, True),
    }
    _, *wrong = kinds[schema["type"]]
    assert not any(taken(field, value) for value in wrong)
    for bound, step in (("minimum", -1), ("maximum", 1)):
        if bound in schema:
            assert taken(field, schema[bound])
            assert not taken(field, schema[bound] + step)
    if "exclusiveMinimum" in schema:
        assert not taken(field, schema["exclusiveMinimum"])
        assert taken(field, schema["exclusiveMinimum"] + 1e-9)
    if "maxLength" in schema:
        assert taken(field, "x" * schema["maxLength"])
        assert not taken(field, "x" * (schema["maxLength"] + 1))


@pytest.mark.parametrize("name", [name for name, field in FIELDS.items() if field.treatment == "refused"])
def test_refused_fields_take_their_neutral_values_only(name) -> None:
    field = FIELDS[name]
    assert all(taken(field, value) for value in field.schema.get("enum", []))
    assert not taken(field, "something else")


@pytest.mark.parametrize("limit", [1, 5, 10, 11, 99, 100, 264, 1000, 1999])
def test_numerals_below_a_limit(limit) -> None:
    pattern = re.compile(numerals_below(limit))
    assert {n for n in range(2 * limit + 20) if pattern.fullmatch(str(n))} == set(range(limit))
    assert not pattern.fullmatch("00")
    assert not pattern.fullmatch("01")


def test_the_document_needs_a_key_where_one_is_set() -> None:
    with simulated("tape", api_key="user-key") as server:
        assert server.client.get("/openapi.json").status_code == 401
        paths = server.client.get("/openapi.json", headers={"x-api-key": "user-key"}).json()["paths"]
        assert paths["/health"]["get"]["security"] == []
        assert paths["/v1/models"]["get"]["security"] == [{"key": []}]
