"""POST /v1/score: how likely labels are after each of several texts."""

import math
from typing import Any

from corymb.serve.answer import encode
from corymb.serve.asks import Room, check_choices, rids
from corymb.serve.body import read_json
from corymb.serve.call import Call
from corymb.serve.engine import ServedModel
from corymb.serve.errors import ApiError, invalid, shown
from corymb.serve.fields import Field, boolean, string, token_ids
from corymb.serve.generation import Generation
from corymb.serve.labels import Labelled, label_logprobs, labelled_asks, softmax
from corymb.serve.parts import Parts
from corymb.serve.prompts import PromptEncoder, encode_prompts, read_prompts
from corymb.serve.requests import gather, new_rid, read_fields, read_model, request_fields, routing, table, unless_gone
from corymb.serve.settings import HttpSettings

MAX_LABELS = 1024


def score_fields(info: ServedModel, settings: HttpSettings) -> dict[str, Field]:
    """Fields of /v1/score."""
    own = [
        string("model", 256),
        Field("query", "text, or list of token ids", lambda param, value: read_prompts(param, value, info, settings)),
        Field(
            "items", "list of texts, or of lists of token ids", lambda p, value: read_prompts(p, value, info, settings)
        ),
        token_ids("label_token_ids", info.vocab_size, MAX_LABELS),
        boolean("apply_softmax"),
        boolean("item_first"),
    ]
    return table(own, request_fields(settings))


class Score:
    """Reads, runs and answers."""

    def __init__(self, parts: Parts) -> None:
        info = parts.engine.info
        self._parts = parts
        self._fields = score_fields(info, parts.settings)
        self._room = Room(info.context_length, clamp=False, prompt="items")
        self._encoder = PromptEncoder(parts.tokenizer, self._room)

    async def __call__(self, call: Call) -> None:
        """Handles one request."""
        values = read_fields(self._fields, await read_json(call, self._parts.settings), call)
        model = read_model(self._parts.engine.info, values)
        labels = values.get("label_token_ids", ())
        if not labels or len(set(labels)) < len(labels):
            raise invalid("label_token_ids", "is required: a list of token ids, none of them twice.")
        prompts = [Labelled(ids, labels) for ids in await self._prompts(values)]
        names = rids(values.get("rid") or new_rid("score"), len(prompts))
        generation = Generation(labelled_asks(names, prompts, self._room, routing(values)))
        softened = values.get("apply_softmax", False)
        await unless_gone(call, self._answer(call, generation, model, softened))

    async def _prompts(self, values: dict[str, Any]) -> list[list[int]]:
        for name in ("query", "items"):
            if name not in values:
                raise ApiError("invalid_value", f"`{name}` is required.", param=name)
        if len(values["query"]) != 1:
            raise invalid("query", f"must be one text or one list of token ids, not {shown(values['query'])}.")
        (query,), items = values["query"], values["items"]
        check_choices(len(items), 1, self._parts.settings.max_choices)
        if any(type(item) is not type(query) for item in items):
            raise invalid("items", "must be of the same kind as `query`: text, or token ids.")
        pairs = [(item, query) if values.get("item_first", False) else (query, item) for item in items]
        joined = [first + second for first, second in pairs]
        encoded = await encode_prompts("items", joined, self._encoder, add_special_tokens=True)
        return [prompt.token_ids for prompt in encoded]

    async def _answer(self, call: Call, generation: Generation, model: str, softened: bool) -> None:
        logprobs = label_logprobs(generation, await gather(self._parts, generation))
        scores = [softmax(each) if softened else [math.exp(logprob) for logprob in each] for each in logprobs]
        usage = {"prompt_tokens": generation.usage.num_prompt, "total_tokens": generation.usage.num_prompt}
        await call.answer(200, encode({"object": "scoring", "scores": scores, "model": model, "usage": usage}))
