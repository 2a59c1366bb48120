"""POST /v1/rerank: documents in the order of how well they answer a query, by a model that says yes or no."""

from typing import Any

from corymb.serve import shapes
from corymb.serve.answer import encode
from corymb.serve.asks import Room, check_choices, rids
from corymb.serve.body import read_json
from corymb.serve.call import Call
from corymb.serve.chatting import Chatting
from corymb.serve.engine import ServedModel
from corymb.serve.errors import ApiError, in_words_of, invalid, shown
from corymb.serve.fields import Field, boolean, integer, string
from corymb.serve.generation import Generation
from corymb.serve.labels import Labelled, label_logprobs, labelled, labelled_asks, softmax
from corymb.serve.parts import Parts
from corymb.serve.requests import gather, new_rid, read_fields, read_model, request_fields, routing, table, unless_gone
from corymb.serve.settings import HttpSettings

LABELS = ("yes", "no")
_WORDS = {"type": "string", "minLength": 1}
_DOCUMENT = shapes.either(_WORDS, shapes.record({"text": _WORDS}))
_MAX_TEXT = 1 << 24  # characters; the body's limit comes first
_INSTRUCT = "Given a web search query, retrieve relevant passages that answer the query"
# The form that Qwen3-Reranker was trained on; any chat model can follow it.
_SYSTEM = (
    "Judge whether the Document meets the requirements based on the Query and the Instruct provided. "
    'Note that the answer can only be "yes" or "no".'
)


def rerank_fields(_: ServedModel, settings: HttpSettings) -> dict[str, Field]:
    """Fields of /v1/rerank."""
    own = [
        string("model", 256),
        string("query", _MAX_TEXT, min_chars=1),
        Field(
            "documents",
            "list of texts, or of objects with a `text`",
            _documents(settings),
            schema=shapes.array(_DOCUMENT, minItems=1, maxItems=settings.max_choices),
        ),
        string("instruct", _MAX_TEXT, min_chars=1),
        integer("top_n", 1, 2**31 - 1),
        boolean("return_documents"),
    ]
    return table(own, request_fields(settings))


def _documents(settings: HttpSettings) -> Any:
    def read(param: str, value: object) -> list[str]:
        if not isinstance(value, list) or not 0 < len(value) <= settings.max_choices:
            raise invalid(param, f"must be a list of 1 to {settings.max_choices} documents, not {shown(value)}.")
        return [_document(param, item) for item in value]

    return read


def _document(param: str, item: object) -> str:
    text = item.get("text") if isinstance(item, dict) else item
    if not isinstance(text, str) or not text:
        raise invalid(param, f"must hold texts that are not empty, not {shown(text)}.")
    return text


class Rerank:
    """Reads, runs and answers."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self._fields = rerank_fields(parts.engine.info, parts.settings)
        self._room = Room(parts.engine.info.context_length, clamp=False, prompt="documents")
        self._chatting = Chatting(parts)

    async def __call__(self, call: Call) -> None:
        """Handles one request."""
        values = read_fields(self._fields, await read_json(call, self._parts.settings), call)
        model = read_model(self._parts.engine.info, values)
        for name in ("query", "documents"):
            if name not in values:
                raise ApiError("invalid_value", f"`{name}` is required.", param=name)
        await unless_gone(call, self._answer(call, values, model))

    async def _answer(self, call: Call, values: dict[str, Any], model: str) -> None:
        documents = values["documents"]
        check_choices(len(documents), 1, self._parts.settings.max_choices)
        prompts = [await self._prompt(values, document) for document in documents]
        names = rids(values.get("rid") or new_rid("rerank"), len(prompts))
        generation = Generation(labelled_asks(names, prompts, self._room, routing(values)))
        logprobs = label_logprobs(generation, await gather(self._parts, generation))
        scores = [softmax(each)[0] for each in logprobs]
        ranked = sorted(range(len(scores)), key=lambda index: -scores[index])[: values.get("top_n")]
        shows = values.get("return_documents", True)
        results = [
            {"index": index, "relevance_score": scores[index]}
            | ({"document": {"text": documents[index]}} if shows else {})
            for index in ranked
        ]
        usage = {"prompt_tokens": generation.usage.num_prompt, "total_tokens": generation.usage.num_prompt}
        await call.answer(200, encode({"id": names[0], "model": model, "usage": usage, "results": results}))

    async def _prompt(self, values: dict[str, Any], document: str) -> Labelled:
        instruct = values.get("instruct", _INSTRUCT)
        asked = f"<Instruct>: {instruct}\n<Query>: {values['query']}\n<Document>: {document}"
        messages = [{"role": "system", "content": _SYSTEM}, {"role": "user", "content": asked}]
        with in_words_of({"messages": "documents"}):
            rendered = await self._chatting.render(
                {"messages": messages, "chat_template_kwargs": {"enable_thinking": False}}
            )
        return await labelled(self._parts.tokenizer, rendered, LABELS, param="documents")
