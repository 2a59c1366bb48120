"""POST /v1/decisions: questions about a text, answered by the probabilities of one token each."""

import math
from typing import Any

from corymb.serve.answer import encode
from corymb.serve.asks import Room, check_choices, rids
from corymb.serve.body import read_json
from corymb.serve.call import Call
from corymb.serve.chatting import Chatting
from corymb.serve.conversation import read_kwargs
from corymb.serve.engine import ServedModel
from corymb.serve.errors import ApiError, in_words_of
from corymb.serve.fields import Field, boolean, integer, number, refused, string, translated
from corymb.serve.generation import Generation
from corymb.serve.labels import Labelled, label_logprobs, labelled, labelled_asks, softmax
from corymb.serve.parts import Parts
from corymb.serve.questions import FORMAT_VERSION, Question, asked, read_questions
from corymb.serve.requests import (
    gather,
    new_rid,
    now_s,
    read_fields,
    read_model,
    request_fields,
    routing,
    table,
    unless_gone,
)
from corymb.serve.settings import HttpSettings

_OPEN_THOUGHTS = ("<think>", "<|think|>", "[THINK]")


def decision_fields(_: ServedModel, settings: HttpSettings) -> dict[str, Field]:
    """Fields of /v1/decisions."""
    own = [
        string("model", 256),
        translated("input", "text, object or list: what the questions are about"),
        Field("questions", "list of questions of type choice, score or yes_no", read_questions),
        number("temperature", 0, 100, above=True),
        Field("chat_template_kwargs", "object of template variables: text, numbers, booleans", read_kwargs),
        integer("prompt_format_version", FORMAT_VERSION, FORMAT_VERSION),
        boolean("return_prompt_token_ids"),
        refused("images", "this server takes text only", []),
    ]
    return table(own, request_fields(settings))


class Decisions:
    """Reads, runs and answers."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self._fields = decision_fields(parts.engine.info, parts.settings)
        self._room = Room(parts.engine.info.context_length, clamp=False, prompt="input")
        self._chatting = Chatting(parts)

    async def __call__(self, call: Call) -> None:
        """Handles one request."""
        values = read_fields(self._fields, await read_json(call, self._parts.settings), call)
        model = read_model(self._parts.engine.info, values)
        for name in ("input", "questions"):
            if name not in values:
                raise ApiError("invalid_value", f"`{name}` is required.", param=name)
        check_choices(len(values["questions"]), 1, self._parts.settings.max_choices)
        await unless_gone(call, self._answer(call, values, model))

    async def _answer(self, call: Call, values: dict[str, Any], model: str) -> None:
        questions: list[Question] = values["questions"]
        prompts = [await self._prompt(values, question) for question in questions]
        rid = values.get("rid") or new_rid("decision")
        generation = Generation(labelled_asks(rids(rid, len(prompts)), prompts, self._room, routing(values)))
        logprobs = label_logprobs(generation, await gather(self._parts, generation))
        temperature = values.get("temperature", 1.0)
        decisions = [_decision(*each, temperature) for each in zip(questions, logprobs, strict=True)]
        if values.get("return_prompt_token_ids", False):
            for decision, prompt in zip(decisions, prompts, strict=True):
                decision["prompt_token_ids"] = prompt.token_ids
        answer = {
            "id": rid,
            "object": "decisions",
            "created": now_s(),
            "model": model,
            "prompt_format_version": FORMAT_VERSION,
            "decisions": decisions,
            "usage": {"prompt_tokens": generation.usage.num_prompt, "total_tokens": generation.usage.num_prompt},
        }
        await call.answer(200, encode(answer))

    async def _prompt(self, values: dict[str, Any], question: Question) -> Labelled:
        # The label must be the very next token, so the model may not think first.
        kwargs = {"enable_thinking": False, "thinking": False} | values.get("chat_template_kwargs", {})
        messages = [{"role": "user", "content": asked(values["input"], question)}]
        with in_words_of({"messages": "input"}):
            rendered = await self._chatting.render({"messages": messages, "chat_template_kwargs": kwargs})
        if rendered.text.rstrip().endswith(_OPEN_THOUGHTS):
            raise ApiError(
                "unsupported_by_model", "This model's chat template lets it think first: no label can follow."
            )
        return await labelled(self._parts.tokenizer, rendered, question.labels, param="questions")


def _decision(question: Question, logprobs: list[float], temperature: float) -> dict[str, Any]:
    shares = softmax(logprobs, temperature=temperature)
    decision: dict[str, Any] = {
        "id": question.id,
        "type": question.kind,
        "probabilities": dict(zip(question.names, shares, strict=True)),
        "label_mass": sum(math.exp(logprob) for logprob in logprobs),
    }
    if question.kind == "score":
        return decision | {"score": sum(level * share for level, share in enumerate(shares))}
    return decision | {"choice": question.names[shares.index(max(shares))]}
