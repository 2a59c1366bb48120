"""What each route takes and answers, for the OpenAPI document: fields from the tables that requests are read with."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from corymb.serve import answer_schemas as schemas
from corymb.serve.admin import abort_fields, pause_fields, profile_fields
from corymb.serve.answer_schemas import Schema
from corymb.serve.anthropic_fields import count_fields, message_fields
from corymb.serve.chat_completions import chat_fields
from corymb.serve.completions import completion_fields
from corymb.serve.decisions import decision_fields
from corymb.serve.embeddings import classify_fields, embed_fields, embedding_fields
from corymb.serve.fields import Field, token_id_schema
from corymb.serve.messages import MAX_MESSAGES
from corymb.serve.native_fields import native_fields, native_sampling_fields
from corymb.serve.ollama import show_fields
from corymb.serve.ollama_fields import ollama_chat_fields, ollama_generate_fields
from corymb.serve.parse_routes import parse_fields, separate_fields
from corymb.serve.parts import Parts
from corymb.serve.rerank import rerank_fields
from corymb.serve.responses_fields import response_fields
from corymb.serve.score import score_fields
from corymb.serve.text_routes import detokenize_fields, tokenize_fields

EVENTS, LINES = "text/event-stream", "application/x-ndjson"


@dataclass(frozen=True, slots=True, kw_only=True)
class Body:
    """A JSON request body. `nested` completes the schemas of fields that a single value's bounds cannot tell."""

    fields: Mapping[str, Field]
    nested: Mapping[str, Schema] = field(default_factory=dict)
    required: tuple[str, ...] = ()
    rules: Schema = field(default_factory=dict)  # how fields go together
    optional: bool = False  # no body at all is as good as an empty object

    def schema(self) -> Schema:
        """Unknown fields pass: they are named in a response header."""
        members = {
            name: {**schemas.or_null(self.nested.get(name, one.schema)), "description": one.accepts}
            for name, one in self.fields.items()
        }
        # Null is "not set", so what is required may not be null.
        required = {name: self.nested.get(name, self.fields[name].schema) or schemas.SET for name in self.required}
        whole = schemas.record(required, {name: schema for name, schema in members.items() if name not in required})
        return {**whole, **self.rules}


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    """What one route takes and answers. A route without an entry here is told without details."""

    summary: str
    answer: Schema | None = None  # None: text that is no JSON
    body: Body | None = None
    streams: str | None = None  # the media type of its streams
    query: Mapping[str, Schema] = field(default_factory=dict)


def operations(parts: Parts) -> Mapping[str, Operation]:
    """By path."""
    return {
        **_generating(parts),
        **_texts(parts),
        **_anthropic(parts),
        **_responses(parts),
        **_ollama(parts),
        **_judging(parts),
        **_parsing(),
        **_asking(),
        **_operating(),
    }


def _generating(parts: Parts) -> dict[str, Operation]:
    info, settings = parts.engine.info, parts.settings
    shared = _shared(parts) | {"stream_options": schemas.STREAM_OPTIONS}
    chat = Body(
        fields=chat_fields(info, settings),
        nested=shared | _conversation(),
        required=("messages",),
    )
    completion = Body(
        fields=completion_fields(info, settings), nested=shared | {"prompt": _prompts(parts)}, required=("prompt",)
    )
    return {
        "/v1/chat/completions": Operation(
            summary="Answers a conversation.", body=chat, answer=schemas.CHAT, streams=EVENTS
        ),
        "/v1/completions": Operation(
            summary="Continues prompts.", body=completion, answer=schemas.COMPLETION, streams=EVENTS
        ),
        "/generate": Operation(
            summary="Continues prompts.", body=_native(parts), answer=schemas.GENERATED, streams=EVENTS
        ),
    }


def _native(parts: Parts) -> Body:
    info, settings = parts.engine.info, parts.settings
    token_id, most = token_id_schema(info.vocab_size), settings.max_choices
    ids = schemas.array(token_id, minItems=1, maxItems=info.context_length)
    text: Schema = {"type": "string", "minLength": 1}
    sampling = Body(fields=native_sampling_fields(info.vocab_size)).schema()
    nested = {
        "text": schemas.either(text, schemas.array(text, minItems=1, maxItems=most)),
        "input_ids": schemas.either(ids, schemas.array(ids, minItems=1, maxItems=most)),
        "sampling_params": schemas.one_or_each(sampling, most),
        "rid": schemas.one_or_each(_shared(parts)["rid"], most),
    }
    fields = native_fields(info, settings, lambda _, value: value)
    return Body(fields=fields, nested={**_shared(parts), **nested}, rules=schemas.one_of("text", "input_ids"))


def _texts(parts: Parts) -> dict[str, Operation]:
    info, settings = parts.engine.info, parts.settings
    token_id = token_id_schema(info.vocab_size)
    ids = schemas.array(token_id)
    most = settings.max_choices
    texts = schemas.either(schemas.TEXT, schemas.array(schemas.TEXT, minItems=1, maxItems=most))
    tokenize = Operation(
        summary="Tells the token ids of texts or of a conversation.",
        body=Body(
            fields=tokenize_fields(info, settings),
            nested={**_shared(parts), **_conversation(), "prompt": texts},
            rules=schemas.one_of("prompt", "messages"),
        ),
        answer=schemas.TOKENIZED,
    )
    detokenize = Operation(
        summary="Tells the text of token ids.",
        body=Body(
            fields=detokenize_fields(info, settings),
            nested={**_shared(parts), "tokens": schemas.either(ids, schemas.array(ids, maxItems=most))},
            required=("tokens",),
        ),
        answer=schemas.DETOKENIZED,
    )
    return {
        "/tokenize": tokenize,
        "/v1/tokenize": tokenize,
        "/detokenize": detokenize,
        "/v1/detokenize": detokenize,
    }


def _anthropic(parts: Parts) -> dict[str, Operation]:
    message = Body(
        fields=message_fields(parts.engine.info, parts.settings),
        nested=_shared(parts),
        required=("messages", "max_tokens"),
    )
    count = Body(fields=count_fields(), nested=_shared(parts), required=("messages",))
    return {
        "/v1/messages": Operation(
            summary="Answers a conversation, as Anthropic does.", body=message, answer=schemas.MESSAGE, streams=EVENTS
        ),
        "/v1/messages/count_tokens": Operation(
            summary="Counts the tokens of a conversation.", body=count, answer=schemas.COUNTED
        ),
    }


def _responses(parts: Parts) -> dict[str, Operation]:
    body = Body(fields=response_fields(parts.engine.info, parts.settings), nested=_shared(parts), required=("input",))
    summary = "Answers a conversation, as OpenAI's Responses API does."
    return {
        "/v1/responses": Operation(summary=summary, body=body, answer=schemas.RESPONSE, streams=EVENTS),
        "/v1/responses/{id}": Operation(summary="Tells, cancels or forgets a stored response.", answer=schemas.OBJECT),
    }


def _ollama(parts: Parts) -> dict[str, Operation]:
    info = parts.engine.info
    chat = Body(fields=ollama_chat_fields(info), nested=_shared(parts))
    text = Body(fields=ollama_generate_fields(info), nested=_shared(parts))
    shows = Body(fields=show_fields(), nested=_shared(parts))
    return {
        "/api/chat": Operation(
            summary="Answers a conversation, as Ollama does.", body=chat, answer=schemas.OLLAMA, streams=LINES
        ),
        "/api/generate": Operation(
            summary="Continues a prompt, as Ollama does.", body=text, answer=schemas.OLLAMA, streams=LINES
        ),
        "/api/show": Operation(summary="Tells the model, as Ollama does.", body=shows, answer=schemas.OBJECT),
        **{
            f"/api/{name}": Operation(summary="Answers as Ollama does.", answer=schemas.OBJECT)
            for name in ("tags", "ps", "version")
        },
    }


def _judging(parts: Parts) -> dict[str, Operation]:
    info, settings = parts.engine.info, parts.settings
    score = Body(fields=score_fields(info, settings), nested=_shared(parts), required=("query", "items"))
    rerank = Body(fields=rerank_fields(info, settings), nested=_shared(parts), required=("query", "documents"))
    embedding = Body(fields=embedding_fields(info, settings), nested=_shared(parts), required=("input",))
    embed = Body(fields=embed_fields(info, settings), nested=_shared(parts), required=("input",))
    classify = Body(fields=classify_fields(), nested=_shared(parts))
    decide = Body(fields=decision_fields(info, settings), nested=_shared(parts), required=("questions",))
    return {
        "/v1/classify": Operation(
            summary="Refuses: no model with a head for classes is served.", body=classify, answer={}
        ),
        "/v1/embeddings": Operation(summary="Tells vectors of texts.", body=embedding, answer=schemas.EMBEDDINGS),
        "/api/embed": Operation(summary="The same, as Ollama does.", body=embed, answer=schemas.OBJECT),
        "/v1/score": Operation(summary="Scores items after a query.", body=score, answer=schemas.SCORES),
        "/v1/rerank": Operation(summary="Orders documents for a query.", body=rerank, answer=schemas.RANKED),
        "/v1/decisions": Operation(summary="Answers questions about a text.", body=decide, answer=schemas.OBJECT),
    }


def _parsing() -> dict[str, Operation]:
    calls = Body(fields=parse_fields(), required=("text", "tool_call_parser"))
    thoughts = Body(fields=separate_fields(), required=("text", "reasoning_parser"))
    return {
        "/parse_function_call": Operation(summary="Finds calls in a text.", body=calls, answer=schemas.PARSED),
        "/separate_reasoning": Operation(summary="Finds reasoning in a text.", body=thoughts, answer=schemas.SEPARATED),
    }


def _operating() -> dict[str, Operation]:
    loads = Operation(summary="Tells how busy the server is.", answer={})
    pause, profile = Body(fields=pause_fields(), optional=True), Body(fields=profile_fields(), optional=True)
    return {
        "/debug/tree": Operation(
            summary="Draws the radix tree.",
            answer=schemas.TREE,
            query={"max_nodes": {"type": "integer", "minimum": 1, "maximum": 10_000}},
        ),
        "/v1/loads": loads,
        "/get_load": loads,
        "/pause_generation": Operation(summary="Starts no more steps.", body=pause, answer=schemas.OBJECT),
        "/continue_generation": Operation(summary="Goes on after a pause.", answer=schemas.OBJECT),
        "/start_profile": Operation(summary="Starts recording steps.", body=profile, answer=schemas.OBJECT),
        "/stop_profile": Operation(summary="Ends the recording.", answer=schemas.OBJECT),
    }


def _asking() -> dict[str, Operation]:
    everything = {"required": ["abort_all"], "properties": {"abort_all": {"enum": [True]}}}
    rules = {"anyOf": [schemas.has("rid"), everything]}
    abort = Body(fields=abort_fields(), nested={"rid": _rid()}, rules=rules)
    models = Operation(summary="Tells what is served.", answer=schemas.MODEL_INFO)
    server = Operation(summary="Tells the resolved configuration and the state.", answer=schemas.SERVER_INFO)
    flush = Operation(
        summary="Drops everything cached.",
        answer=schemas.DONE,
        query={"timeout": {"type": "number", "minimum": 0, "maximum": 600}},
    )
    healthy = Operation(summary="Tells whether requests are taken.", answer=schemas.HEALTHY)
    return {
        "/health": healthy,
        "/ping": healthy,
        "/health_generate": Operation(summary="Generates one token.", answer=schemas.HEALTHY),
        "/metrics": Operation(summary="Figures for Prometheus."),
        "/v1/models": Operation(summary="Lists the names of the model.", answer=schemas.MODELS),
        "/v1/models/{id}": Operation(summary="Tells one model.", answer=schemas.MODEL),
        "/model_info": models,
        "/get_model_info": models,
        "/server_info": server,
        "/get_server_info": server,
        "/flush_cache": flush,
        "/abort_request": Operation(summary="Ends requests.", body=abort, answer=schemas.DONE),
    }


def _shared(parts: Parts) -> dict[str, Schema]:
    return {"model": schemas.enum(*parts.engine.info.names), "rid": _rid()}


def _conversation() -> dict[str, Schema]:
    return {"messages": schemas.messages(MAX_MESSAGES), "chat_template_kwargs": schemas.TEMPLATE_VARIABLES}


def _rid() -> Schema:
    return {"type": "string", "pattern": "^[A-Za-z0-9._:-]{1,128}$"}


def _prompts(parts: Parts) -> Schema:
    info = parts.engine.info
    return schemas.prompts(
        token_id_schema(info.vocab_size), max_prompts=parts.settings.max_choices, max_tokens=info.context_length
    )
