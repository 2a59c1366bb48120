"""Every field that an official SDK can send is in a table: honoured, refused or named as ignored."""

import anthropic.types.message_count_tokens_params as anthropic_count
import anthropic.types.message_create_params as anthropic_messages
import ollama._types as ollama_types
import openai.types.chat.completion_create_params as openai_chat
import openai.types.completion_create_params as openai_completions
import openai.types.embedding_create_params as openai_embeddings
import openai.types.responses.response_create_params as openai_responses
import pytest

from tests.http.client import post, tape
from tests.http.dialects import DIALECTS
from tests.http.tables import field_tables

# `stream` is told apart by the types of the SDKs.
SENT = {
    "chat": [openai_chat.CompletionCreateParamsBase, openai_chat.CompletionCreateParamsStreaming],
    "completions": [openai_completions.CompletionCreateParamsBase, openai_completions.CompletionCreateParamsStreaming],
    "embeddings": [openai_embeddings.EmbeddingCreateParams],
    "responses": [openai_responses.ResponseCreateParamsBase, openai_responses.ResponseCreateParamsStreaming],
    "messages": [anthropic_messages.MessageCreateParamsBase, anthropic_messages.MessageCreateParamsStreaming],
    "count_tokens": [anthropic_count.MessageCountTokensParams],
}


@pytest.mark.parametrize("name", SENT)
def test_every_field_of_the_sdk_has_a_treatment(name) -> None:
    known = field_tables()[name]
    sent = {field for params in SENT[name] for field in params.__annotations__}
    assert sorted(sent - known.keys()) == []


OLLAMA = {
    "ollama_chat": ollama_types.ChatRequest,
    "ollama_generate": ollama_types.GenerateRequest,
    "ollama_options": ollama_types.Options,
    "ollama_embed": ollama_types.EmbedRequest,
    "ollama_show": ollama_types.ShowRequest,
}


@pytest.mark.parametrize("name", OLLAMA)
def test_every_field_of_ollamas_client_has_a_treatment(name) -> None:
    assert sorted(OLLAMA[name].model_fields.keys() - field_tables()[name].keys()) == []


@pytest.mark.parametrize("name", field_tables())
def test_a_field_without_effect_is_never_read_in_silence(name) -> None:
    for field in field_tables()[name].values():
        assert (field.read is None) <= (field.treatment == "ignored"), field.name
        assert field.accepts, field.name


TABLES = {"chat": "chat", "completions": "completions", "native": "generate", "responses": "responses",
          "messages": "messages", "ollama": "ollama_chat"}  # fmt: skip
INSIDE = {"native": "sampling_params", "ollama": "ollama_options"}


def neutral(table: str) -> list[tuple[str, object]]:
    """Values that refused fields let pass."""
    fields = [field for field in field_tables()[table].values() if field.treatment == "refused"]
    return [(field.name, value) for field in fields for value in [*field.schema.get("enum", []), None]]


@pytest.mark.parametrize("name", TABLES)
def test_what_a_refused_field_lets_pass_changes_nothing(simulated_tape, name) -> None:
    dialect = DIALECTS[name]
    plain = {**dialect.prompt(tape("abc")), dialect.limit: 20, "temperature": 0}
    if dialect.options is not None:
        plain = {**dialect.prompt(tape("abc")), dialect.options: {dialect.limit: 20, "temperature": 0}}
    changed = [{**plain, field: value} for field, value in neutral(TABLES[name])]
    for field, value in neutral(INSIDE[name]) if name in INSIDE else []:
        changed.append({**plain, dialect.options: {**plain[dialect.options], field: value}})
    assert changed
    for body in changed:
        answer = post(simulated_tape, dialect.path, body)
        assert answer.status_code == 200, (body, answer.text)
        assert dialect.text(answer.json()) == "abc"
        assert "x-ignored-fields" not in answer.headers
