"""How many tokens the pools hold: from what the operator asks for and what memory allows. Imports no torch."""

from dataclasses import dataclass, replace

from corymb.cache.config import LEAST_STATES
from corymb.models.errors import ModelError
from corymb.models.memory import Memory

_MOST_REQUESTS = 32  # of full context length: more are seldom used, and a CPU cannot run more
_DEFAULT_SHARE = 0.25  # of the memory that is available beside the weights
_LEAST_TOKENS = 512  # a server with less could not answer a common prompt
SLIDING_RATIO = 0.8
STATE_RATIO = 0.9
_STATES_A_REQUEST = 4  # one that it works in, two snapshots, and one that waits in the tree for the next such request


class NotEnoughMemory(ModelError):
    """The model or its pools do not fit; the message says what would."""


@dataclass(frozen=True, slots=True)
class TokenBytes:
    """What one token costs in each pool, one recurrent state, and the record of a draft, over all layers."""

    full: int
    sliding: int
    state: int = 0
    record: int = 0


@dataclass(frozen=True, slots=True)
class PoolRequest:
    """What the operator asks of the pools. None leaves it to the memory there is."""

    context_length: int
    max_running_requests: int
    page_size: int = 1
    max_total_tokens: int | None = None
    mem_fraction_static: float | None = None  # weights and pools over all memory
    sliding_ratio: float = SLIDING_RATIO  # tokens of the sliding pool for each token of the full pool
    state_ratio: float = STATE_RATIO  # bytes of recurrent states for each byte of keys and values
    max_states: int | None = None  # None: by the ratio
    num_records: int = 0  # tokens of all requests that may be taken back at once


@dataclass(frozen=True, slots=True)
class PoolSizes:
    """Tokens that requests can use, multiples of the page size, and states; what each pool reserves not counted."""

    num_full_tokens: int
    num_sliding_tokens: int
    num_states: int
    cost: TokenBytes
    num_records: int = 0

    @property
    def size_bytes(self) -> int:
        """Of all pools."""
        tokens = self.num_full_tokens * self.cost.full + self.num_sliding_tokens * self.cost.sliding
        return tokens + self.num_states * self.cost.state + self.num_records * self.cost.record

    def table(self) -> list[str]:
        """A line a pool, for people."""
        pools = [
            ("full", self.num_full_tokens, "tokens", self.cost.full),
            ("sliding", self.num_sliding_tokens, "tokens", self.cost.sliding),
            ("recurrent", self.num_states, "states", self.cost.state),
            ("records", self.num_records, "tokens", self.cost.record),
        ]
        return [
            f"{name:<10}{count:>11,} {unit} × {cost:>10,} bytes = {gib(count * cost):>10}"
            for name, count, unit, cost in pools
            if count
        ]


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
    """Decides the pools' sizes: records, then states, then tokens of what they leave. Raises NotEnoughMemory."""
    num_records = request.num_records if cost.record else 0
    records_bytes = num_records * cost.record
    if 0 < room.pool_bytes <= records_bytes:
        raise NotEnoughMemory(
            f"Too little memory: records of {num_records} drafts take {gib(records_bytes)} of the "
            f"{gib(room.pool_bytes)} for pools; lower --max-running-requests or --speculative-num-draft-tokens."
        )
    room = _without(room, records_bytes)
    num_states = _num_states(cost, request, room)
    room = _without(room, num_states * cost.state)
    return replace(_size_tokens(cost, window, request, room), num_states=num_states, num_records=num_records)


def _without(room: Room, taken_bytes: int) -> Room:
    return replace(room, pool_bytes=room.pool_bytes - taken_bytes, available_bytes=room.available_bytes - taken_bytes)


def _num_states(cost: TokenBytes, request: PoolRequest, room: Room) -> int:
    if not cost.state:
        return 0
    if request.max_states is not None:
        asked_bytes = request.max_states * cost.state
        if asked_bytes > room.available_bytes:
            raise NotEnoughMemory(
                f"Too little memory: --max-mamba-cache-size {request.max_states} needs {gib(asked_bytes)} and "
                f"{gib(room.available_bytes)} are available beside the weights."
            )
        return request.max_states
    share = request.state_ratio / (1 + request.state_ratio)
    most = int(room.pool_bytes * share / cost.state)
    if most < LEAST_STATES:
        raise NotEnoughMemory(
            f"Too little memory: a recurrent state takes {gib(cost.state)}, and --mamba-full-memory-ratio "
            f"{request.state_ratio:g} of {gib(room.pool_bytes)} holds {most}; {LEAST_STATES} are the least."
        )
    wanted = _STATES_A_REQUEST * request.max_running_requests
    return most if request.mem_fraction_static is not None else min(wanted, most)


def _size_tokens(cost: TokenBytes, window: int | None, request: PoolRequest, room: Room) -> PoolSizes:
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
    return PoolSizes(full, sliding, 0, cost)
