"""Every field that an official SDK can send is in a table: honoured, refused or named as ignored."""

import anthropic.types.message_count_tokens_params as anthropic_count
import anthropic.types.message_create_params as anthropic_messages
import ollama._types as ollama_types
import openai.types.chat.completion_create_params as openai_chat
import openai.types.completion_create_params as openai_completions
import openai.types.embedding_create_params as openai_embeddings
import openai.types.responses.response_create_params as openai_responses
import pytest

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
