"""Sampling in plain Python, a row and a token at a time: what `sampling`, `logit_edits` and `noise` must agree with."""

import math
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Request:
    """How one request wants its tokens, and what it has so far."""

    prompt_ids: Sequence[int] = ()
    output_ids: Sequence[int] = ()
    bias: Mapping[int, float] = field(default_factory=dict)
    forbidden_ids: Collection[int] = ()
    repetition: float = 1.0
    presence: float = 0.0
    frequency: float = 0.0
    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0


def choose(logits: Sequence[float], request: Request, key: tuple[int, int]) -> int:
    """The next token of a request, from the model's logits and a key of `row_key`."""
    edited = edit(logits, request)
    kept = keep(edited, request)
    if request.temperature == 0:
        return kept[0]
    best = edited[kept[0]]
    return max(kept, key=lambda t: (edited[t] - best) / request.temperature - math.log(exponential(key, t)))


def edit(logits: Sequence[float], request: Request) -> list[float]:
    """Adds the bias, subtracts the penalties, and takes out what is forbidden."""
    edited = list(logits)
    for token_id, bias in request.bias.items():
        edited[token_id] += bias
    counts = Counter(request.output_ids)
    for token_id in set(request.prompt_ids) | set(request.output_ids):
        said = edited[token_id]
        said = said / request.repetition if said > 0 else said * request.repetition
        said -= request.frequency * counts[token_id]
        edited[token_id] = said - (request.presence if counts[token_id] else 0.0)
    for token_id in request.forbidden_ids:
        edited[token_id] = -math.inf
    return edited


def keep(edited: Sequence[float], request: Request) -> list[int]:
    """The tokens that may be drawn, best first, the lower id among equals."""
    ranked = sorted(range(len(edited)), key=lambda t: (-edited[t], t))
    if request.temperature == 0:
        return ranked[:1]
    weights = {t: math.exp((edited[t] - edited[ranked[0]]) / request.temperature) for t in ranked}
    kept = ranked[: request.top_k] if request.top_k else ranked
    if request.top_p < 1:
        kept = _nucleus(kept, weights, request.top_p)
    return [t for t in kept if weights[t] >= request.min_p]  # the best token's weight is 1


def row_key(seed: int, index: int) -> tuple[int, int]:
    """The key of a request's output token number `index`: two times 32 bits."""
    golden = 0x9E3779B97F4A7C15
    mixed = _mix64(_mix64(seed + golden) + (index + 1) * golden)
    return mixed & 0xFFFFFFFF, mixed >> 32


def exponential(key: tuple[int, int], token_id: int) -> float:
    """The token's standard exponential variate."""
    bits = (token_id * 0x9E3779B1 + key[0]) & 0xFFFFFFFF
    bits = (bits ^ bits >> 16) * 0x7FEB352D & 0xFFFFFFFF
    bits = ((bits ^ bits >> 15) + key[1]) & 0xFFFFFFFF
    bits = bits * 0x846CA68B & 0xFFFFFFFF
    bits = (bits ^ bits >> 16) * 0x7FEB352D & 0xFFFFFFFF
    bits = (bits ^ bits >> 15) & 0x7FFFFFFF
    return -math.log1p(-min((bits + 0.5) * 2.0**-31, 1 - 2.0**-24))


def _nucleus(kept: list[int], weights: Mapping[int, float], top_p: float) -> list[int]:
    """The fewest of the best tokens that hold `top_p` of the weight of those kept."""
    total = sum(weights[t] for t in kept)
    before = 0.0
    for count, token_id in enumerate(kept):
        if before >= top_p * total:
            return kept[:count]
        before += weights[token_id]
    return kept


def _mix64(value: int) -> int:
    mask = (1 << 64) - 1
    value &= mask
    value = (value ^ value >> 30) * 0xBF58476D1CE4E5B9 & mask
    value = (value ^ value >> 27) * 0x94D049BB133111EB & mask
    return value ^ value >> 31
