"""How long a request waits for what is read from storage."""

from collections.abc import Callable

from corymb.cache.cache import Cache
from corymb.scheduler.config import PrefetchPolicy
from corymb.scheduler.request import Request

PATIENCE_S = 1.0
PATIENCE_PER_TOKEN_S = 0.25 / 1024
MOST_PATIENCE_S = 30.0


def patience_s(policy: PrefetchPolicy, num_tokens: int) -> float:
    """How long a request waits for so many tokens, from when it came."""
    if policy == "best_effort":
        return 0.0
    if policy == "wait_complete":
        return float("inf")
    return min(PATIENCE_S + PATIENCE_PER_TOKEN_S * num_tokens, MOST_PATIENCE_S)


class Prefetching:
    """Lets requests wait for what storage has of them. It is looked for, and read where there is time for it, from when
    a request comes; the request owns it until it gets its seat."""

    def __init__(self, cache: Cache, policy: PrefetchPolicy, *, force_miss: bool, clock: Callable[[], float]) -> None:
        """`clock`: the one that arrival times are read from."""
        self._cache = cache
        self._policy = policy
        self._force_miss = force_miss
        self._clock = clock

    def waits(self, request: Request) -> bool:
        """Whether a request whose turn it is should wait for more to be read."""
        fetch = request.fetch
        if fetch is None or fetch.is_done or self._force_miss:
            return False
        self._cache.read(fetch)
        waited_s = self._clock() - request.arrived_s
        if waited_s >= patience_s(self._policy, fetch.stop - fetch.begin):
            return False
        return self._cache.promise(request.key, request.hit_limit()) < fetch.stop
