"""POST /generate: the native endpoint."""

from collections.abc import Sequence
from typing import Any

from corymb.scheduler.messages import LogprobOptions
from corymb.serve.asks import Ask, Room, check_choices, rids
from corymb.serve.body import read_json
from corymb.serve.call import Call
from corymb.serve.errors import in_words_of, invalid, shown
from corymb.serve.generation import Generation
from corymb.serve.grammar_fields import format_members, grammar_param
from corymb.serve.native_answer import NativeAnswer, NativeView
from corymb.serve.native_fields import Each, native_fields, native_sampling_fields
from corymb.serve.parts import Parts
from corymb.serve.prompts import Prompt, PromptEncoder, encode_prompts
from corymb.serve.requests import generate, name_ignored_members, new_rid, read_fields, read_model, routing
from corymb.serve.sampling_fields import check_min, sampling, text_options

DEFAULT_MAX_NEW_TOKENS = 128


class Native:
    """Reads, runs and answers native requests."""

    def __init__(self, parts: Parts) -> None:
        info, settings = parts.engine.info, parts.settings
        self._parts = parts
        self._sampling_fields = native_sampling_fields(info.vocab_size)
        self._fields = native_fields(info, settings, _read_object)
        self._room = Room(info.context_length, settings.clamp_max_tokens)
        self._encoder = PromptEncoder(parts.tokenizer, self._room)

    async def __call__(self, call: Call) -> None:
        """Handles one request."""
        body = await read_json(call, self._parts.settings)
        values = read_fields(self._fields, body, call)
        read_model(self._parts.engine.info, values)
        param, given = _prompt_field(values)
        is_batch = isinstance(given, Each)
        with in_words_of({"prompt": param}):
            prompts = await encode_prompts(
                param, given if is_batch else [given], self._encoder, add_special_tokens=True
            )
            asks = self._asks(values, prompts, self._read_sampling(values, len(prompts), call))
        view = NativeView(
            is_list=is_batch or asks[0].n > 1,
            incremental=self._parts.settings.incremental_streaming_output,
            text_in_logprobs=values.get("return_text_in_logprobs", False),
        )
        generation = Generation(asks)
        answer = NativeAnswer(generation, view)
        await generate(call, self._parts, generation, answer, stream=values.get("stream", False))

    def _read_sampling(self, values: dict[str, Any], count: int, call: Call) -> list[dict[str, Any]]:
        given = values.get("sampling_params", {})
        if not isinstance(given, Each):
            one = self._read_params(given, call)
            check_choices(count, one.get("n", 1), self._parts.settings.max_choices)
            return [one] * count
        _check_length("sampling_params", given, count)
        each = [self._read_params(item, call) for item in given]
        check_choices(1, sum(item.get("n", 1) for item in each), self._parts.settings.max_choices)
        return each

    def _read_params(self, given: dict[str, Any], call: Call) -> dict[str, Any]:
        values = read_fields(self._sampling_fields, given, call, prefix="sampling_params.")
        members = {f"sampling_params.{path}": read for path, read in format_members(given).items()}
        name_ignored_members(call, {"sampling_params": given}, members)
        return values

    def _asks(self, values: dict[str, Any], prompts: Sequence[Prompt], params: Sequence[dict[str, Any]]) -> list[Ask]:
        names = self._rids(values, len(prompts))
        return [self._ask(values, index, prompts[index], params[index], names[index]) for index in range(len(prompts))]

    def _rids(self, values: dict[str, Any], count: int) -> list[str]:
        given = values.get("rid")
        if not isinstance(given, Each):
            return rids(given or new_rid("gen"), count)
        _check_length("rid", given, count)
        if len(set(given)) < count:
            raise invalid("rid", "must not name two prompts alike.")
        return given

    def _ask(self, values: dict[str, Any], index: int, prompt: Prompt, params: dict[str, Any], rid: str) -> Ask:
        name = "sampling_params.max_new_tokens"
        asked = params.get("max_new_tokens")
        max_new = self._room.new_tokens(len(prompt.token_ids), asked, DEFAULT_MAX_NEW_TOKENS, param=name)
        min_new = params.get("min_new_tokens", 0)
        check_min("sampling_params.min_new_tokens", min_new, max_new, limit=name)
        if "sampling_seed" in params:
            params = {**params, "seed": params["sampling_seed"]}
        settings, vocab_size = self._parts.settings, self._parts.engine.info.vocab_size
        return Ask(
            rid=rid,
            token_ids=prompt.token_ids,
            sampling=sampling(params, settings, max_new=max_new, min_new=min_new, vocab_size=vocab_size),
            text=text_options(params, min_new=min_new),
            logprobs=_logprobs(values, index, len(prompt.token_ids)),
            n=params.get("n", 1),
            routing=routing(values),
            grammar_param=grammar_param(params),
        )


def _read_object(param: str, value: object) -> object:
    if not isinstance(value, dict):
        raise invalid(param, f"must be an object, not {shown(value)}.")
    return value


def _prompt_field(values: dict[str, Any]) -> tuple[str, Any]:
    given = [name for name in ("text", "input_ids") if name in values]
    if len(given) != 1:
        raise invalid("text", "or `input_ids` is required, and not both.")
    return given[0], values[given[0]]


def _check_length(param: str, given: Sequence[Any], count: int) -> None:
    if len(given) != count:
        raise invalid(param, f"is a list of {len(given)}, but there are {count} prompts.")


def _of(values: dict[str, Any], name: str, index: int, default: Any) -> Any:
    value = values.get(name, default)
    if not isinstance(value, Each):
        return value
    if index >= len(value):
        raise invalid(name, f"is a list of {len(value)}, which is fewer than there are prompts.")
    return value[index]


def _logprobs(values: dict[str, Any], index: int, num_prompt: int) -> LogprobOptions | None:
    if not _of(values, "return_logprob", index, False):
        return None
    start = _of(values, "logprob_start_len", index, -1)
    if start >= num_prompt:
        raise invalid("logprob_start_len", f"must be below the prompt's {num_prompt} tokens, not {start}.")
    top = _of(values, "top_logprobs_num", index, 0)
    return LogprobOptions(top=top, prompt_from=start, token_ids=_of(values, "token_ids_logprob", index, ()))
