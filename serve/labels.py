"""How likely the next token of a prompt is each of a few labels: what scoring, ranking and deciding are made of."""

import asyncio
import math
from collections.abc import Sequence
from dataclasses import dataclass

from corymb.scheduler.messages import LogprobOptions, Sampling, TextOptions
from corymb.serve.answer import Choice
from corymb.serve.asks import Ask, Room, Routing
from corymb.serve.conversation import Rendered
from corymb.serve.errors import ApiError
from corymb.serve.generation import Generation
from corymb.serve.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class Labelled:
    """A prompt, and the token of each label that may follow it."""

    token_ids: list[int]
    label_ids: tuple[int, ...]


def labelled_asks(rids: Sequence[str], prompts: Sequence[Labelled], room: Room, routing: Routing) -> list[Ask]:
    """What to run: one token after each prompt, and the logprobs of its labels there."""
    return [_ask(rid, prompt, room, routing) for rid, prompt in zip(rids, prompts, strict=True)]


def _ask(rid: str, prompt: Labelled, room: Room, routing: Routing) -> Ask:
    room.new_tokens(len(prompt.token_ids), 1, None, param="input")
    return Ask(
        rid=rid,
        token_ids=prompt.token_ids,
        sampling=Sampling(max_new_tokens=1, temperature=0.0),
        text=TextOptions(),
        logprobs=LogprobOptions(token_ids=prompt.label_ids),
        n=1,
        routing=routing,
    )


def label_logprobs(generation: Generation, choices: Sequence[Choice]) -> list[list[float]]:
    """For each prompt the logprob of each label, in the order of labels."""
    found = []
    for ask, choice in zip(generation.asks, choices, strict=True):
        assert ask.logprobs is not None
        if not choice.logprobs:
            raise ApiError("request_aborted", "The request was ended before its labels were scored.")
        by_id = {entry.token_id: entry.logprob for entry in choice.logprobs[0].chosen}
        logprobs = [by_id[token_id] for token_id in ask.logprobs.token_ids]
        found.append([-math.inf if logprob is None else logprob for logprob in logprobs])
    return found


def softmax(logprobs: Sequence[float], *, temperature: float = 1.0) -> list[float]:
    """Shares that add up to 1."""
    most = max(logprobs)
    if most == -math.inf:
        return [1 / len(logprobs)] * len(logprobs)
    weights = [math.exp((logprob - most) / temperature) for logprob in logprobs]
    return [weight / sum(weights) for weight in weights]


async def labelled(tokenizer: Tokenizer, prompt: Rendered, labels: Sequence[str], *, param: str) -> Labelled:
    """The prompt with each label's token. Every label must add exactly one token of its own to the prompt."""
    return await asyncio.to_thread(_labelled, tokenizer, prompt, labels, param)


def _labelled(tokenizer: Tokenizer, prompt: Rendered, labels: Sequence[str], param: str) -> Labelled:
    found = [_label_id(tokenizer, prompt, label, param) for label in labels]
    if len(set(found)) < len(found):
        raise _unsupported("has two labels that are one token of this model's tokenizer", param)
    return Labelled(prompt.token_ids, tuple(found))


def _label_id(tokenizer: Tokenizer, prompt: Rendered, label: str, param: str) -> int:
    longer = tokenizer.encode(prompt.text + label, add_special_tokens=False)
    if longer[:-1] != prompt.token_ids:
        raise _unsupported(f"needs the label {label!r} to be one token after the prompt, which it is not here", param)
    return longer[-1]


def _unsupported(problem: str, param: str) -> ApiError:
    return ApiError("unsupported_by_model", f"`{param}` {problem}.", param=param)
