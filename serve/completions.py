"""POST /v1/completions."""

from collections.abc import Sequence
from typing import Any

from corymb.serve.answer import Head
from corymb.serve.asks import Ask, Room, check_choices, rids
from corymb.serve.body import read_json
from corymb.serve.call import Call
from corymb.serve.completion_answer import CompletionAnswer, CompletionView
from corymb.serve.engine import ServedModel
from corymb.serve.errors import ApiError
from corymb.serve.fields import Field, boolean, ignored, integer, refused, string
from corymb.serve.generation import Generation
from corymb.serve.grammar_fields import format_members, grammar_param, response_format_field
from corymb.serve.parts import Parts
from corymb.serve.prompts import Prompt, PromptEncoder, encode_prompts, read_prompts
from corymb.serve.requests import (
    generate,
    name_ignored_members,
    new_rid,
    now_s,
    read_fields,
    read_model,
    request_fields,
    routing,
    table,
)
from corymb.serve.sampling_fields import (
    MAX_NEW_TOKENS,
    MAX_TOP_LOGPROBS,
    check_min,
    openai_logprobs,
    sampling,
    sampling_fields,
    structure_fields,
    text_options,
)
from corymb.serve.settings import HttpSettings
from corymb.serve.stream_usage import StreamUsage, read_stream_options, stream_usage

DEFAULT_MAX_TOKENS = 16


def completion_fields(info: ServedModel, settings: HttpSettings) -> dict[str, Field]:
    """Every field of a completion that we know."""
    own = [
        string("model", 256),
        Field(
            "prompt",
            "text, list of token ids, or list of either",
            lambda param, value: read_prompts(param, value, info, settings),
        ),
        integer("max_tokens", 0, MAX_NEW_TOKENS),
        integer("min_tokens", 0, MAX_NEW_TOKENS),
        integer("logprobs", 0, MAX_TOP_LOGPROBS),
        boolean("echo"),
        boolean("stream"),
        Field("stream_options", "object: include_usage, continuous_usage_stats", read_stream_options),
        boolean("include_stop_str_in_output"),
        boolean("add_special_tokens"),
        integer("best_of", 1, 128),
        refused("suffix", "this server does not fill in the middle", ""),
        refused("messages", "use /v1/chat/completions"),
        refused("max_completion_tokens", "use `max_tokens`"),
        refused("max_new_tokens", "use `max_tokens`"),
        refused("top_logprobs", "use `logprobs`", 0),
        refused("prompt_logprobs", "use `echo` with `logprobs`", False),
        refused("prompt_embeds", "prompts are text or token ids"),
        response_format_field(),
        ignored("user", "not used"),
    ]
    return table(own, sampling_fields(info.vocab_size), request_fields(settings), structure_fields())


class Completions:
    """Reads, runs and answers completions."""

    def __init__(self, parts: Parts) -> None:
        info, settings = parts.engine.info, parts.settings
        self._parts = parts
        self._fields = completion_fields(info, settings)
        self._room = Room(info.context_length, settings.clamp_max_tokens)
        self._encoder = PromptEncoder(parts.tokenizer, self._room)

    async def __call__(self, call: Call) -> None:
        """Handles one request."""
        body = await read_json(call, self._parts.settings)
        values = read_fields(self._fields, body, call)
        name_ignored_members(call, body, format_members(body))
        model = read_model(self._parts.engine.info, values)
        prompts = await self._read_prompts(values)
        generation = Generation(self._asks(values, prompts))
        usage = stream_usage(call, body, values)
        answer = self._answer(values, model, prompts, generation, usage)
        await generate(call, self._parts, generation, answer, stream=values.get("stream", False))

    async def _read_prompts(self, values: dict[str, Any]) -> list[Prompt]:
        if "prompt" not in values:
            raise ApiError("invalid_value", "`prompt` is required.", param="prompt")
        n = values.get("n", 1)
        if values.get("best_of", n) != n:
            raise ApiError(
                "unsupported_parameter", "`best_of` is not supported: leave it out or equal to `n`.", param="best_of"
            )
        check_choices(len(values["prompt"]), n, self._parts.settings.max_choices)
        special = values.get("add_special_tokens", True)
        return await encode_prompts("prompt", values["prompt"], self._encoder, add_special_tokens=special)

    def _asks(self, values: dict[str, Any], prompts: Sequence[Prompt]) -> list[Ask]:
        rid = values.get("rid") or new_rid("cmpl")
        return [self._ask(values, name, prompt) for name, prompt in zip(rids(rid, len(prompts)), prompts, strict=True)]

    def _ask(self, values: dict[str, Any], rid: str, prompt: Prompt) -> Ask:
        info = self._parts.engine.info
        asked = values.get("max_tokens")
        max_new = self._room.new_tokens(len(prompt.token_ids), asked, DEFAULT_MAX_TOKENS, param="max_tokens")
        min_new = values.get("min_tokens", 0)
        check_min("min_tokens", min_new, max_new, limit="max_tokens")
        settings = self._parts.settings
        return Ask(
            rid=rid,
            token_ids=prompt.token_ids,
            sampling=sampling(values, settings, max_new=max_new, min_new=min_new, vocab_size=info.vocab_size),
            text=text_options(values, min_new=min_new),
            logprobs=openai_logprobs(values.get("logprobs"), prompt_from=0 if values.get("echo") else -1),
            n=values.get("n", 1),
            routing=routing(values),
            grammar_param=grammar_param(values),
        )

    def _answer(
        self, values: dict[str, Any], model: str, prompts: Sequence[Prompt], generation: Generation, usage: StreamUsage
    ) -> CompletionAnswer:
        view = CompletionView(
            prompts=prompts,
            n=values.get("n", 1),
            echo=values.get("echo", False),
            logprobs="logprobs" in values,
            skip_special_tokens=values.get("skip_special_tokens", True),
        )
        asks = generation.asks
        rid = asks[0].rid if len(asks) == 1 else asks[0].rid.rpartition("/")[0]
        return CompletionAnswer(
            Head(rid, "text_completion", now_s(), model),
            view,
            self._parts.tokenizer,
            usage=generation.usage,
            stream_usage=usage,
        )
