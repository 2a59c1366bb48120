"""What one HTTP request asks of the engine: prompts, each with its options and a number of choices."""

import time
from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import msgspec

from corymb.scheduler.messages import Generate, LogprobOptions, Sampling, TextOptions
from corymb.serve.errors import ApiError, Excess, invalid
from corymb.serve.sampling_fields import seed_of_choice

_PROMPT_TAIL = 8  # tokens of left context for the detokenizer


@dataclass(frozen=True, slots=True, kw_only=True)
class Routing:
    """Where and when a request runs."""

    priority: int | None = None
    cache_salt: str | None = None
    extra_key: str | None = None
    routing_key: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """One prompt and what is wanted after it."""

    rid: str
    token_ids: Sequence[int]
    sampling: Sampling
    text: TextOptions
    logprobs: LogprobOptions | None
    n: int
    routing: Routing
    grammar_param: str = ""  # the field that asks for `sampling.grammar`
    embed: bool = False
    arrived_s: float = field(default_factory=time.monotonic)

    def choice_rids(self) -> list[str]:
        """A rid for each choice."""
        return rids(self.rid, self.n)


def generates(asks: Sequence[Ask]) -> Iterator[tuple[Generate, bool]]:
    """The engine's requests in the order of choices, and whether each is the first of its prompt."""
    for ask in asks:
        base = _generate(ask)
        for index, rid in enumerate(ask.choice_rids()):
            seed = seed_of_choice(ask.sampling.seed, index)
            sampling = msgspec.structs.replace(ask.sampling, seed=seed)
            yield msgspec.structs.replace(base, rid=rid, sampling=sampling), index == 0


def _generate(ask: Ask) -> Generate:
    routing = ask.routing
    return Generate(
        rid=ask.rid,
        prompt=array("i", ask.token_ids).tobytes(),
        sampling=ask.sampling,
        text=msgspec.structs.replace(ask.text, prompt_tail=tuple(ask.token_ids[-_PROMPT_TAIL:])),
        logprobs=ask.logprobs,
        priority=routing.priority,
        cache_salt=routing.cache_salt,
        extra_key=routing.extra_key,
        routing_key=routing.routing_key,
        embed=ask.embed,
        arrived_s=ask.arrived_s,
    )


def rids(rid: str, count: int) -> list[str]:
    """A rid for each prompt of a batch, or for each choice of a prompt."""
    return [rid] if count == 1 else [f"{rid}/{index}" for index in range(count)]


@dataclass(frozen=True, slots=True)
class Room:
    """How many tokens may follow a prompt."""

    context_length: int
    clamp: bool
    prompt: str = "prompt"  # the field that holds it

    def new_tokens(self, num_prompt: int, asked: int | None, default: int | None, *, param: str) -> int:
        """The limit for one prompt. `default` None fills the context. Raises context_length_exceeded."""
        left = self.context_length - num_prompt
        if left < 0 or (left == 0 and asked != 0):
            raise too_long(Excess(self.context_length, num_prompt), self.prompt)
        if asked is None:
            return left if default is None else min(default, left)
        if asked <= left or self.clamp:
            return min(asked, left)
        raise too_long(Excess(self.context_length, num_prompt, asked), param)

    def too_many_chars(self, num_chars: int) -> ApiError:
        """For a text that cannot fit, whatever its tokens are."""
        return too_long(Excess(self.context_length, None), self.prompt, num_chars=num_chars)


def too_long(excess: Excess, param: str, *, num_chars: int = 0) -> ApiError:
    """The one sentence for it: agents look for its beginning. `num_chars`: of a prompt that was not tokenised."""
    prompt, asked = excess.prompt, excess.asked
    what = f"your prompt has {prompt} tokens"
    if asked:
        what = f"you asked for {(prompt or 0) + asked} tokens ({prompt} in the prompt, {asked} in `{param}`)"
    elif prompt is None:
        what = f"your prompt has {num_chars} characters, which cannot fit"
    limit = f"This model's maximum context length is {excess.limit} tokens"
    message = f"{limit}, but {what}. Shorten the prompt or ask for fewer tokens."
    return ApiError("context_length_exceeded", message, param=param, excess=excess)


def check_choices(num_prompts: int, n: int, limit: int) -> None:
    """Bounds the fan-out of one request before anything is made for it."""
    if num_prompts * n > limit:
        raise invalid("n", f"times the number of prompts must be at most {limit}, not {num_prompts * n}.")
