"""What each route takes and answers, for the OpenAPI document: fields from the tables that requests are read with."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from corymb.serve import answer_schemas as answers
from corymb.serve import request_schemas as requests
from corymb.serve import shapes
from corymb.serve.admin import abort_fields, pause_fields, profile_fields
from corymb.serve.anthropic_fields import LEAST_BUDGET, count_fields, message_fields
from corymb.serve.chat_completions import chat_fields
from corymb.serve.completions import completion_fields
from corymb.serve.decisions import decision_fields
from corymb.serve.embeddings import classify_fields, embed_fields, embedding_fields
from corymb.serve.fields import Field, token_id_schema
from corymb.serve.messages import MAX_MESSAGES
from corymb.serve.native_fields import native_fields, native_sampling_fields
from corymb.serve.ollama import show_fields
from corymb.serve.ollama_fields import ollama_chat_fields, ollama_generate_fields, option_fields
from corymb.serve.parse_routes import parse_fields, separate_fields
from corymb.serve.parts import Parts
from corymb.serve.rerank import rerank_fields
from corymb.serve.responses_fields import response_fields
from corymb.serve.sampling_fields import MAX_NEW_TOKENS
from corymb.serve.score import MAX_LABELS, score_fields
from corymb.serve.shapes import Schema
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
            name: {**shapes.or_null(self.nested.get(name, one.schema)), "description": one.accepts}
            for name, one in self.fields.items()
        }
        # Null is "not set", so what is required may not be null.
        required = {name: self.nested.get(name, self.fields[name].schema) or shapes.SET for name in self.required}
        whole = shapes.record(required, {name: schema for name, schema in members.items() if name not in required})
        return {**whole, **self.rules}


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    """What one route takes and answers."""

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
    shared = _shared(parts) | {"stream_options": requests.STREAM_OPTIONS}
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
            summary="Answers a conversation.", body=chat, answer=answers.CHAT, streams=EVENTS
        ),
        "/v1/completions": Operation(
            summary="Continues prompts.", body=completion, answer=answers.COMPLETION, streams=EVENTS
        ),
        "/generate": Operation(
            summary="Continues prompts.", body=_native(parts), answer=answers.GENERATED, streams=EVENTS
        ),
    }


def _native(parts: Parts) -> Body:
    info, settings = parts.engine.info, parts.settings
    token_id, most = token_id_schema(info.vocab_size), settings.max_choices
    ids = shapes.array(token_id, minItems=1, maxItems=info.context_length)
    text: Schema = {"type": "string", "minLength": 1}
    sampling = Body(fields=native_sampling_fields(info.vocab_size)).schema()
    nested = {
        "text": shapes.either(text, shapes.array(text, minItems=1, maxItems=most)),
        "input_ids": shapes.either(ids, shapes.array(ids, minItems=1, maxItems=most)),
        "sampling_params": requests.one_or_each(sampling, most),
        "rid": requests.one_or_each(_shared(parts)["rid"], most),
    }
    fields = native_fields(info, settings, lambda _, value: value)
    return Body(fields=fields, nested={**_shared(parts), **nested}, rules=shapes.one_of("text", "input_ids"))


def _texts(parts: Parts) -> dict[str, Operation]:
    info, settings = parts.engine.info, parts.settings
    token_id = token_id_schema(info.vocab_size)
    ids = shapes.array(token_id)
    most = settings.max_choices
    texts = shapes.either(shapes.TEXT, shapes.array(shapes.TEXT, minItems=1, maxItems=most))
    tokenize = Operation(
        summary="Tells the token ids of texts or of a conversation.",
        body=Body(
            fields=tokenize_fields(info, settings),
            nested={**_shared(parts), **_conversation(), "prompt": texts},
            rules=shapes.one_of("prompt", "messages"),
        ),
        answer=answers.TOKENIZED,
    )
    detokenize = Operation(
        summary="Tells the text of token ids.",
        body=Body(
            fields=detokenize_fields(info, settings),
            nested={**_shared(parts), "tokens": shapes.either(ids, shapes.array(ids, maxItems=most))},
            required=("tokens",),
        ),
        answer=answers.DETOKENIZED,
    )
    return {
        "/tokenize": tokenize,
        "/v1/tokenize": tokenize,
        "/detokenize": detokenize,
        "/v1/detokenize": detokenize,
    }


def _anthropic(parts: Parts) -> dict[str, Operation]:
    nested = {
        **_shared(parts),
        "messages": requests.anthropic_messages(MAX_MESSAGES),
        "system": requests.SYSTEM,
        "thinking": requests.thinking(LEAST_BUDGET, MAX_NEW_TOKENS),
    }
    message = Body(
        fields=message_fields(parts.engine.info, parts.settings),
        nested=nested | {"output_config": requests.OUTPUT_CONFIG},
        required=("messages", "max_tokens"),
    )
    count = Body(fields=count_fields(), nested=nested, required=("messages",))
    return {
        "/v1/messages": Operation(
            summary="Answers a conversation, as Anthropic does.", body=message, answer=answers.MESSAGE, streams=EVENTS
        ),
        "/v1/messages/count_tokens": Operation(
            summary="Counts the tokens of a conversation.", body=count, answer=answers.COUNTED
        ),
    }


def _responses(parts: Parts) -> dict[str, Operation]:
    nested = {
        "model": _shared(parts)["model"],
        "input": requests.INPUT,
        "text": requests.RESPONSE_TEXT,
        "reasoning": requests.REASONING,
        "chat_template_kwargs": requests.TEMPLATE_VARIABLES,
    }
    body = Body(fields=response_fields(parts.engine.info, parts.settings), nested=nested, required=("input",))
    summary = "Answers a conversation, as OpenAI's Responses API does."
    return {
        "/v1/responses": Operation(summary=summary, body=body, answer=answers.RESPONSE, streams=EVENTS),
        "/v1/responses/input_tokens": Operation(
            summary="Counts the tokens of a response's input.", body=body, answer=answers.INPUT_TOKENS
        ),
        "/v1/responses/{id}": Operation(summary="Tells, cancels or forgets a stored response.", answer=answers.STORED),
    }


def _ollama(parts: Parts) -> dict[str, Operation]:
    info = parts.engine.info
    options = Body(fields=option_fields()).schema()
    nested = {**_shared(parts), "options": options, "think": requests.THINK}
    chat = Body(fields=ollama_chat_fields(info), nested=nested | {"messages": requests.ollama_messages(MAX_MESSAGES)})
    text = Body(fields=ollama_generate_fields(info), nested=nested, rules=requests.RAW)
    shows = Body(fields=show_fields(), nested={**_shared(parts), "name": _shared(parts)["model"]})
    return {
        "/api/chat": Operation(
            summary="Answers a conversation, as Ollama does.", body=chat, answer=answers.OLLAMA, streams=LINES
        ),
        "/api/generate": Operation(
            summary="Continues a prompt, as Ollama does.", body=text, answer=answers.OLLAMA, streams=LINES
        ),
        "/api/show": Operation(summary="Tells the model, as Ollama does.", body=shows, answer=answers.OLLAMA_SHOWN),
        "/api/tags": Operation(summary="Lists the names of the model.", answer=answers.OLLAMA_MODELS),
        "/api/ps": Operation(summary="Lists what is in memory.", answer=answers.OLLAMA_MODELS),
        "/api/version": Operation(summary="Tells the server's version.", answer=answers.OLLAMA_VERSION),
    }


def _judging(parts: Parts) -> dict[str, Operation]:
    info, settings = parts.engine.info, parts.settings
    token_id, most = token_id_schema(info.vocab_size), settings.max_choices
    labels = {**shapes.array(token_id, minItems=1, maxItems=MAX_LABELS), "uniqueItems": True}
    score = Body(
        fields=score_fields(info, settings),
        nested={**_shared(parts), "label_token_ids": labels},
        required=("query", "items", "label_token_ids"),
        rules=requests.texts_to_score(token_id, max_items=most, max_tokens=info.context_length),
    )
    rerank = Body(fields=rerank_fields(info, settings), nested=_shared(parts), required=("query", "documents"))
    nested = {**_shared(parts), "input": _prompts(parts)}
    embedding = Body(fields=embedding_fields(info, settings), nested=nested, required=("input",))
    embed = Body(fields=embed_fields(info, settings), nested=nested, required=("input",))
    classify = Body(fields=classify_fields(), nested=_shared(parts))
    decide = Body(
        fields=decision_fields(info, settings),
        nested={
            **_shared(parts),
            "questions": requests.QUESTIONS,
            "chat_template_kwargs": requests.TEMPLATE_VARIABLES,
        },
        required=("input", "questions"),
    )
    return {
        "/v1/classify": Operation(
            summary="Refuses: no model with a head for classes is served.", body=classify, answer={}
        ),
        "/v1/embeddings": Operation(summary="Tells vectors of texts.", body=embedding, answer=answers.EMBEDDINGS),
        "/api/embed": Operation(summary="The same, as Ollama does.", body=embed, answer=answers.OLLAMA_VECTORS),
        "/v1/score": Operation(summary="Scores items after a query.", body=score, answer=answers.SCORES),
        "/v1/rerank": Operation(summary="Orders documents for a query.", body=rerank, answer=answers.RANKED),
        "/v1/decisions": Operation(summary="Answers questions about a text.", body=decide, answer=answers.DECIDED),
    }


def _parsing() -> dict[str, Operation]:
    calls = Body(fields=parse_fields(), required=("text", "tool_call_parser"))
    thoughts = Body(fields=separate_fields(), required=("text", "reasoning_parser"))
    return {
        "/parse_function_call": Operation(summary="Finds calls in a text.", body=calls, answer=answers.PARSED),
        "/separate_reasoning": Operation(summary="Finds reasoning in a text.", body=thoughts, answer=answers.SEPARATED),
    }


def _operating() -> dict[str, Operation]:
    loads = Operation(summary="Tells how busy the server is.", answer=answers.LOADS)
    pause, profile = Body(fields=pause_fields(), optional=True), Body(fields=profile_fields(), optional=True)
    nothing = Body(fields={}, optional=True)
    return {
        "/debug/tree": Operation(
            summary="Draws the radix tree.",
            answer=answers.TREE,
            query={"max_nodes": {"type": "integer", "minimum": 1, "maximum": 10_000}},
        ),
        "/v1/loads": loads,
        "/get_load": loads,
        "/pause_generation": Operation(summary="Starts no more steps.", body=pause, answer=answers.OBEYED),
        "/continue_generation": Operation(summary="Goes on after a pause.", body=nothing, answer=answers.OBEYED),
        "/start_profile": Operation(summary="Starts recording steps.", body=profile, answer=answers.OBEYED),
        "/stop_profile": Operation(summary="Ends the recording.", body=nothing, answer=answers.OBEYED),
    }


def _asking() -> dict[str, Operation]:
    everything = {"required": ["abort_all"], "properties": {"abort_all": {"enum": [True]}}}
    rules = {"anyOf": [shapes.has("rid"), everything]}
    abort = Body(fields=abort_fields(), nested={"rid": _rid()}, rules=rules)
    models = Operation(summary="Tells what is served.", answer=answers.MODEL_INFO)
    server = Operation(summary="Tells the resolved configuration and the state.", answer=answers.SERVER_INFO)
    flush = Operation(
        summary="Drops everything cached.",
        answer=answers.DONE,
        query={"timeout": {"type": "number", "minimum": 0, "maximum": 600}},
    )
    healthy = Operation(summary="Tells whether requests are taken.", answer=answers.HEALTHY)
    return {
        "/health": healthy,
        "/ping": healthy,
        "/health_generate": Operation(summary="Generates one token.", answer=answers.HEALTHY),
        "/metrics": Operation(summary="Figures for Prometheus."),
        "/v1/models": Operation(summary="Lists the names of the model.", answer=answers.MODELS),
        "/v1/models/{id}": Operation(summary="Tells one model.", answer=answers.MODEL),
        "/model_info": models,
        "/get_model_info": models,
        "/server_info": server,
        "/get_server_info": server,
        "/flush_cache": flush,
        "/abort_request": Operation(summary="Ends requests.", body=abort, answer=answers.DONE),
    }


def _shared(parts: Parts) -> dict[str, Schema]:
    return {"model": shapes.enum(*parts.engine.info.names), "rid": _rid()}


def _conversation() -> dict[str, Schema]:
    return {"messages": requests.messages(MAX_MESSAGES), "chat_template_kwargs": requests.TEMPLATE_VARIABLES}


def _rid() -> Schema:
    return {"type": "string", "pattern": "^[A-Za-z0-9._:-]{1,128}$"}


def _prompts(parts: Parts) -> Schema:
    info = parts.engine.info
    return requests.prompts(
        token_id_schema(info.vocab_size), max_prompts=parts.settings.max_choices, max_tokens=info.context_length
    )
