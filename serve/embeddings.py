"""POST /v1/embeddings and /api/embed: texts as vectors; and what only models with other heads could answer."""

import asyncio
import base64
import math
import time
from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from corymb.scheduler.messages import Sampling, TextOptions
from corymb.serve.answer import encode, joined
from corymb.serve.asks import Ask, Room, Routing, check_choices, rids
from corymb.serve.body import read_json
from corymb.serve.call import Call
from corymb.serve.engine import ServedModel
from corymb.serve.errors import ApiError, invalid, shown
from corymb.serve.fields import Field, boolean, ignored, integer, string, translated
from corymb.serve.generation import Generation
from corymb.serve.parts import Parts
from corymb.serve.prompts import PromptEncoder, encode_prompts, read_prompts
from corymb.serve.requests import gather, new_rid, read_fields, read_model, request_fields, routing, table, unless_gone
from corymb.serve.settings import HttpSettings

MAX_DIMENSIONS = 1 << 20
Vector: TypeAlias = "array[float]"  # quoted: it cannot be subscripted at run time
_SPELLED_AT_ONCE = 32
_FORMATS = ("float", "base64")


def embedding_fields(info: ServedModel, settings: HttpSettings) -> dict[str, Field]:
    """Fields of /v1/embeddings."""
    own = [
        string("model", 256),
        _prompts("input", info, settings),
        integer("dimensions", 1, info.hidden_size or MAX_DIMENSIONS),
        Field("encoding_format", f"one of {', '.join(_FORMATS)}", _read_format, schema={"enum": list(_FORMATS)}),
        boolean("add_special_tokens"),
        ignored("user", "not used"),
    ]
    return table(own, request_fields(settings))


def embed_fields(info: ServedModel, settings: HttpSettings) -> dict[str, Field]:
    """Fields of /api/embed."""
    own = [
        string("model", 256),
        _prompts("input", info, settings),
        integer("dimensions", 1, info.hidden_size or MAX_DIMENSIONS),
        ignored("truncate", "texts are never cut"),
        ignored("options", "nothing of it changes an embedding"),
        ignored("keep_alive", "the model stays loaded"),
    ]
    return table(own)


def classify_fields() -> dict[str, Field]:
    """Fields of /v1/classify."""
    return table([string("model", 256), translated("input", "text, or list of texts")])


def _prompts(name: str, info: ServedModel, settings: HttpSettings) -> Field:
    accepts = "text, list of token ids, or list of either"
    return Field(name, accepts, lambda param, value: read_prompts(param, value, info, settings))


def _read_format(param: str, value: object) -> str:
    if value not in _FORMATS:
        raise invalid(param, f"must be one of {', '.join(_FORMATS)}, not {shown(value)}.")
    return str(value)


@dataclass(frozen=True, slots=True)
class Embedded:
    """Vectors of length 1, in the order of texts, and the tokens that they took."""

    vectors: Sequence[Vector]
    num_tokens: int


class Embeddings:
    """Reads, runs and answers."""

    def __init__(self, parts: Parts) -> None:
        info, settings = parts.engine.info, parts.settings
        self._parts = parts
        self._fields = embedding_fields(info, settings)
        self._embed_fields = embed_fields(info, settings)
        self._classify_fields = classify_fields()
        self._room = Room(info.context_length, clamp=False, prompt="input")
        self._encoder = PromptEncoder(parts.tokenizer, self._room)

    async def openai(self, call: Call) -> None:
        """POST /v1/embeddings."""
        values = read_fields(self._fields, await read_json(call, self._parts.settings), call)
        model = read_model(self._parts.engine.info, values)
        await unless_gone(call, self._answer_openai(call, values, model))

    async def _answer_openai(self, call: Call, values: dict[str, Any], model: str) -> None:
        embedded = await self._embed(values, "embd")
        as_text = values.get("encoding_format") == "base64"
        vectors = await _spelled(embedded.vectors, _base64 if as_text else _floats)
        data = [b'{"object":"embedding","index":%d,"embedding":%b}' % item for item in enumerate(vectors)]
        usage = b'{"prompt_tokens":%d,"total_tokens":%d}' % (embedded.num_tokens, embedded.num_tokens)
        parts = (joined(data), encode(model), usage)
        await call.answer(200, b'{"object":"list","data":%b,"model":%b,"usage":%b}' % parts)

    async def ollama(self, call: Call) -> None:
        """POST /api/embed."""
        body = await read_json(call, self._parts.settings, declared=False)
        values = read_fields(self._embed_fields, body, call)
        model = read_model(self._parts.engine.info, values, latest=True)
        await unless_gone(call, self._answer_ollama(call, values, model))

    async def _answer_ollama(self, call: Call, values: dict[str, Any], model: str) -> None:
        begun_s = time.monotonic()
        embedded = await self._embed(values, "ollama")
        vectors = joined(await _spelled(embedded.vectors, _floats))
        duration_ns = int((time.monotonic() - begun_s) * 1e9)
        parts = (encode(model), vectors, duration_ns, embedded.num_tokens)
        counts = b'"total_duration":%d,"load_duration":0,"prompt_eval_count":%d'
        await call.answer(200, b'{"model":%b,"embeddings":%b,' % parts[:2] + counts % parts[2:] + b"}")

    async def classify(self, call: Call) -> None:
        """POST /v1/classify: no model that is served here has a head for it."""
        values = read_fields(self._classify_fields, await read_json(call, self._parts.settings), call)
        model = read_model(self._parts.engine.info, values)
        instead = "/v1/decisions and /v1/score ask a model that generates"
        message = f"The model {shown(model, limit=140)} has no classification head: {instead}."
        raise ApiError("unsupported_by_model", message, param="model")

    async def _embed(self, values: dict[str, Any], kind: str) -> Embedded:
        model = self._parts.engine.info
        if not model.hidden_size:
            message = f"The model {shown(model.names[0], limit=140)} has no hidden states to make embeddings of."
            raise ApiError("unsupported_by_model", message, param="model")
        if "input" not in values:
            raise ApiError("invalid_value", "`input` is required.", param="input")
        given = values["input"]
        check_choices(len(given), 1, self._parts.settings.max_choices)
        special = values.get("add_special_tokens", True)
        prompts = await encode_prompts("input", given, self._encoder, add_special_tokens=special)
        names = rids(values.get("rid") or new_rid(kind), len(prompts))
        where = routing(values)
        asks = [self._ask(rid, prompt.token_ids, where) for rid, prompt in zip(names, prompts, strict=True)]
        generation = Generation(asks)
        choices = await gather(self._parts, generation)
        vectors = [_vector(choice.embedding, values.get("dimensions")) for choice in choices]
        return Embedded(vectors, generation.usage.num_prompt)

    def _ask(self, rid: str, token_ids: list[int], where: Routing) -> Ask:
        # The token that is sampled after the prompt is what makes every runner finish the prompt's last token.
        self._room.new_tokens(len(token_ids), 1, None, param="input")
        sampling = Sampling(max_new_tokens=1, temperature=0.0)
        return Ask(
            rid=rid,
            token_ids=token_ids,
            sampling=sampling,
            text=TextOptions(),
            logprobs=None,
            n=1,
            routing=where,
            embed=True,
        )


async def _spelled(vectors: Sequence[Vector], spell: Callable[[Vector], bytes]) -> list[bytes]:
    """The vectors as JSON; others get a turn of the event loop meanwhile."""
    spelled: list[bytes] = []
    for vector in vectors:
        if len(spelled) % _SPELLED_AT_ONCE == 0:
            await asyncio.sleep(0)
        spelled.append(spell(vector))
    return spelled


def _floats(vector: Vector) -> bytes:
    return encode(vector.tolist())


def _base64(vector: Vector) -> bytes:
    return b'"%b"' % base64.b64encode(vector.tobytes())


def _vector(embedding: bytes | None, dimensions: int | None) -> Vector:
    if embedding is None:
        raise ApiError("request_aborted", "The request was ended before its embedding was computed.")
    vector = array("f", embedding)[:dimensions]
    if dimensions is None:
        return vector
    length = math.sqrt(sum(number * number for number in vector)) or 1.0
    return array("f", [number / length for number in vector])
