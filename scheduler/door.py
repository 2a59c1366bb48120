"""The second check of every value of a Generate: whatever the HTTP edge let through, nothing wrong gets past here."""

import math
from collections.abc import Callable, Container, Iterable, Iterator
from dataclasses import dataclass

import numpy as np

from corymb.scheduler.messages import Finish, Generate, Grammar, LogprobOptions, Sampling, TextOptions, Thinking
from corymb.scheduler.plan import Int32

MAX_PRIORITY = 1_000_000_000
MAX_NAME_CHARS = 4096  # rid, cache_salt, extra_key, routing_key
MAX_STOPS = 1024  # stop strings, stop token ids, reported token ids
MAX_STOP_CHARS = 16_384
MAX_TOP_LOGPROBS = 1024
MAX_SEED = 1 << 63


@dataclass(frozen=True, slots=True)
class Limits:
    """What the served model can take."""

    vocab_size: int
    context_length: int
    eos_ids: frozenset[int]
    can_embed: bool = False  # the model has hidden states


class Refusal(Exception):
    """Why a request may not enter."""

    def __init__(self, message: str, *, code: str = "invalid_value", status: int = 400) -> None:
        """`message` is one sentence for the client."""
        super().__init__(message)
        self.finish = Finish("error", message=message, status=status, code=code)


def check(
    message: Generate, limits: Limits, *, capacity: int, live: Container[str], knows_grammar: bool = True
) -> Finish | None:
    """Judges one message; None lets it in. `capacity`: tokens the KV pool holds; `live`: rids not yet answered;
    `knows_grammar`: whether the grammar that it names, if any, was compiled."""
    try:
        _check_names(message, live)
        prompt_ids = _check_prompt(message.prompt, limits)
        _check_room(len(prompt_ids), message.sampling.max_new_tokens, limits.context_length, capacity)
        _check_sampling(message.sampling, limits.vocab_size)
        _check_grammar(message.sampling.grammar, limits.vocab_size, known=knows_grammar)
        _check_thinking(message.sampling.thinking, limits.vocab_size)
        _check_text(message.text, limits.vocab_size)
        _check_embed(message, limits)
        if message.logprobs is not None:
            _check_logprobs(message.logprobs, limits.vocab_size, len(prompt_ids))
    except Refusal as refusal:
        return refusal.finish
    return None


def _require(ok: bool, sentence: str) -> None:
    if not ok:
        raise Refusal(sentence)


def _check_names(message: Generate, live: Container[str]) -> None:
    _require(0 < len(message.rid) <= MAX_NAME_CHARS, f"rid: need 1 to {MAX_NAME_CHARS:,} characters")
    if message.rid in live:
        raise Refusal(f"rid: {message.rid!r} is already being served; choose another", code="duplicate_rid")
    for name in ("cache_salt", "extra_key", "routing_key"):
        value = {"cache_salt": message.cache_salt, "extra_key": message.extra_key, "routing_key": message.routing_key}[
            name
        ]
        _require(value is None or len(value) <= MAX_NAME_CHARS, f"{name}: longer than {MAX_NAME_CHARS:,} characters")
    _require(abs(message.priority or 0) <= MAX_PRIORITY, f"priority: must lie within ±{MAX_PRIORITY:,}")
    _require(math.isfinite(message.arrived_s), "arrived_s: must be a finite number")


def _check_prompt(prompt: bytes, limits: Limits) -> Int32:
    _require(len(prompt) > 0, "prompt: empty; send at least one token")
    _require(len(prompt) % 4 == 0, "prompt: not a whole number of int32 token ids")
    token_ids = np.frombuffer(prompt, "<i4").astype(np.int32)
    outside = (token_ids < 0) | (token_ids >= limits.vocab_size)
    if outside.any():
        token_id = int(token_ids[outside.argmax()])
        raise Refusal(f"prompt: token id {token_id} is outside the vocabulary of {limits.vocab_size:,}")
    return token_ids


def _check_room(num_prompt: int, max_new: int, context_length: int, capacity: int) -> None:
    _require(max_new >= 0, f"max_new_tokens: must be 0 or more, got {max_new}")
    if num_prompt + max_new > context_length:
        raise Refusal(
            f"This model's maximum context length is {context_length} tokens. However, you requested "
            f"{num_prompt + max_new} tokens ({num_prompt} in the prompt, {max_new} in the output). "
            "Please reduce one of them.",
            code="context_length_exceeded",
        )
    if num_prompt > capacity:
        raise Refusal(
            f"The prompt has {num_prompt:,} tokens and this server's KV pool holds {capacity:,} (--max-total-tokens). "
            "Please shorten the prompt.",
            code="kv_pool_too_small",
        )


def _check_embed(message: Generate, limits: Limits) -> None:
    if message.embed:
        _require(limits.can_embed, "embed: this model has no hidden states")
        _require(message.sampling.max_new_tokens == 1, "embed: max_new_tokens must be 1")


def _within(low: float, high: float) -> Callable[[float], bool]:
    return lambda value: low <= value <= high  # False for NaN


def _sampling_rules(sampling: Sampling, vocab_size: int) -> Iterator[tuple[str, float, Callable[[float], bool], str]]:
    yield "temperature", sampling.temperature, _within(0, 1e6), "between 0 and 1e6"
    yield "top_p", sampling.top_p, lambda value: 0 < value <= 1, "above 0 and at most 1"
    yield "top_k", sampling.top_k, _within(0, 2**31 - 1), "0 (whole vocabulary) or more, and fit 32 bits"
    yield "min_p", sampling.min_p, _within(0, 1), "between 0 and 1"
    yield "presence_penalty", sampling.presence_penalty, _within(-2, 2), "between -2 and 2"
    yield "frequency_penalty", sampling.frequency_penalty, _within(-2, 2), "between -2 and 2"
    yield "repetition_penalty", sampling.repetition_penalty, _within(1e-3, 1e3), "between 0.001 and 1000"
    yield "min_new_tokens", sampling.min_new_tokens, _within(0, sampling.max_new_tokens), "between 0 and max_new_tokens"
    yield "seed", sampling.seed, _within(-MAX_SEED, MAX_SEED - 1), "a 64-bit integer"
    for token_id, bias in sampling.logit_bias.items():
        yield "logit_bias", token_id, _within(0, vocab_size - 1), f"for token ids below {vocab_size}"
        yield "logit_bias", bias, _within(-100, 100), "between -100 and 100"


def _check_sampling(sampling: Sampling, vocab_size: int) -> None:
    for name, value, accepts, rule in _sampling_rules(sampling, vocab_size):
        _require(accepts(value), f"{name}: must be {rule}, got {value}")
    _check_ids("stop_token_ids", sampling.stop_token_ids, vocab_size)


def _check_grammar(grammar: Grammar | None, vocab_size: int, *, known: bool) -> None:
    _require(known, "grammar: it was not compiled for this server")
    if grammar is not None:
        _check_ids("grammar.after", grammar.after, vocab_size)


def _check_thinking(thinking: Thinking | None, vocab_size: int) -> None:
    if thinking is not None:
        _require(thinking.max_tokens >= 0, "thinking.max_tokens: must not be negative")
        _check_ids("thinking.end", thinking.end, vocab_size)
        _check_ids("thinking.begin", thinking.begin, vocab_size)


def _check_ids(name: str, token_ids: tuple[int, ...], vocab_size: int) -> None:
    _require(len(token_ids) <= MAX_STOPS, f"{name}: more than {MAX_STOPS:,} ids")
    wrong = _first_outside(token_ids, vocab_size)
    _require(wrong is None, f"{name}: token id {wrong} is outside the vocabulary of {vocab_size:,}")


def _first_outside(token_ids: Iterable[int], vocab_size: int) -> int | None:
    return next((token_id for token_id in token_ids if not 0 <= token_id < vocab_size), None)


def _check_text(text: TextOptions, vocab_size: int) -> None:
    _require(len(text.stop) <= MAX_STOPS, f"stop: more than {MAX_STOPS:,} strings")
    _require(all(text.stop), "stop: an empty string matches everywhere; leave it out")
    _require(
        all(len(stop) <= MAX_STOP_CHARS for stop in text.stop), f"stop: a string is longer than {MAX_STOP_CHARS:,}"
    )
    _require(text.min_new_tokens >= 0, "text.min_new_tokens: must be 0 or more")
    _require(
        _first_outside(text.prompt_tail, vocab_size) is None, "text.prompt_tail: a token id is outside the vocabulary"
    )


def _check_logprobs(logprobs: LogprobOptions, vocab_size: int, num_prompt: int) -> None:
    top = min(MAX_TOP_LOGPROBS, vocab_size)
    _require(0 <= logprobs.top <= top, f"logprobs: between 0 and {top} alternatives, got {logprobs.top}")
    inside = -1 <= logprobs.prompt_from <= num_prompt
    _require(inside, f"logprobs: prompt_from must lie between -1 and {num_prompt}, got {logprobs.prompt_from}")
    _check_ids("logprobs.token_ids", logprobs.token_ids, vocab_size)
