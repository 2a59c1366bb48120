"""How many tokens the pools hold: from what the operator asks for and what memory allows. Imports no torch."""

from dataclasses import dataclass

from corymb.models.errors import ModelError
from corymb.models.memory import Memory

_MOST_REQUESTS = 32  # of full context length: more are seldom used, and a CPU cannot run more
_DEFAULT_SHARE = 0.25  # of the memory that is available beside the weights
_LEAST_TOKENS = 512  # a server with less could not answer a common prompt


class NotEnoughMemory(ModelError):
    """The model or its pools do not fit; the message says what would."""


@dataclass(frozen=True, slots=True)
class TokenBytes:
    """What one token costs in each pool, over all its layers."""

    full: int
    sliding: int


@dataclass(frozen=True, slots=True)
class PoolRequest:
    """What the operator asks of the pools. None leaves it to the memory there is."""

    context_length: int
    max_running_requests: int
    page_size: int = 1
    max_total_tokens: int | None = None
    mem_fraction_static: float | None = None  # weights and pools over all memory
    sliding_ratio: float = 0.8  # tokens of the sliding pool for each token of the full pool


@dataclass(frozen=True, slots=True)
class PoolSizes:
    """Tokens that requests can use, multiples of the page size; the reserved page of each pool not counted."""

    num_full_tokens: int
    num_sliding_tokens: int
    size_bytes: int


@dataclass(frozen=True, slots=True)
class Room:
    """The memory beside the weights."""

    weights_bytes: int
    pool_bytes: int  # for pools whose size the operator left open
    available_bytes: int  # for pools of any size


def find_room(memory: Memory, weights_bytes: int, mem_fraction_static: float | None) -> Room:
    """What is left beside weights that are not loaded yet. Raises NotEnoughMemory."""
    left = memory.available_bytes - weights_bytes
    if left <= 0:
        raise NotEnoughMemory(
            f"Too little memory: the weights take {gib(weights_bytes)} and {gib(memory.available_bytes)} are "
            "available; serve a smaller model or free some memory."
        )
    if mem_fraction_static is None:
        return Room(weights_bytes, int(left * _DEFAULT_SHARE), left)
    return Room(weights_bytes, min(left, int(memory.total_bytes * mem_fraction_static) - weights_bytes), left)


def size_pools(cost: TokenBytes, window: int | None, request: PoolRequest, room: Room) -> PoolSizes:
    """Decides the pools' sizes. Raises NotEnoughMemory."""
    per_token = cost.full + (request.sliding_ratio * cost.sliding if window else 0.0)
    if request.max_total_tokens is not None:
        sizes = _sizes(request.max_total_tokens, cost, window, request)
        _check_asked(sizes, request.max_total_tokens, per_token, room)
        return sizes
    wanted = min(request.max_running_requests, _MOST_REQUESTS) * request.context_length
    if not per_token:
        return _sizes(wanted, cost, window, request)
    most = int(room.pool_bytes / per_token)
    if most < min(_LEAST_TOKENS, request.context_length):
        raise NotEnoughMemory(
            f"Too little memory: the weights take {gib(room.weights_bytes)} and leave {gib(room.pool_bytes)} for the "
            f"KV pools, enough for {max(most, 0)} tokens; free some memory or raise --mem-fraction-static."
        )
    return _sizes(most if request.mem_fraction_static is not None else min(wanted, most), cost, window, request)


def gib(size_bytes: float) -> str:
    """A size for people."""
    return f"{size_bytes / (1 << 30):.2f} GiB"


def _check_asked(sizes: PoolSizes, num_tokens: int, per_token: float, room: Room) -> None:
    if sizes.size_bytes > room.available_bytes:
        raise NotEnoughMemory(
            f"Too little memory: --max-total-tokens {num_tokens} needs {gib(sizes.size_bytes)} for the KV pools and "
            f"{gib(room.available_bytes)} are available beside the weights, enough for "
            f"{int(room.available_bytes / per_token)} tokens."
        )


def _sizes(num_tokens: int, cost: TokenBytes, window: int | None, request: PoolRequest) -> PoolSizes:
    page = request.page_size
    full = max(num_tokens // page, 1) * page
    sliding = 0
    if window:
        # However small the pool: a sequence needs its window and the new tokens of a step.
        least = min(full, 2 * window)
        sliding = max(int(full * request.sliding_ratio), least)
        sliding = max(sliding // page, 1) * page
    return PoolSizes(full, sliding, full * cost.full + sliding * cost.sliding)
