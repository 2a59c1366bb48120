"""How long a request waits for what is read from storage, or is on its way from the host."""

from collections.abc import Callable

from corymb.cache.cache import Cache
from corymb.scheduler.config import PrefetchPolicy
from corymb.scheduler.request import Request

PATIENCE_S = 1.0
PATIENCE_PER_TOKEN_S = 0.25 / 1024
MOST_PATIENCE_S = 30.0
LEAST_SENT_AHEAD = 1024  # tokens from the host that are worth a step's delay, when others compute meanwhile


def patience_s(policy: PrefetchPolicy, num_tokens: int) -> float:
    """How long a request waits for so many tokens, from when it came."""
    if policy == "best_effort":
        return 0.0
    if policy == "wait_complete":
        return float("inf")
    return min(PATIENCE_S + PATIENCE_PER_TOKEN_S * num_tokens, MOST_PATIENCE_S)


class Prefetching:
    """Lets requests wait for what storage or the host has of them, while others go on.

    What storage has is looked for, and read where there is time for it, from when a request comes; the request owns it
    until it gets its seat. What then lies on the host is sent to the device when the request's turn comes, one such
    beginning after another; nobody owns it there, and if it goes again before the request is seated, it comes once
    more.
    """

    def __init__(self, cache: Cache, policy: PrefetchPolicy, *, force_miss: bool, clock: Callable[[], float]) -> None:
        """`clock`: the one that arrival times are read from."""
        self._cache = cache
        self._policy = policy
        self._force_miss = force_miss
        self._clock = clock
        self._sent = 0  # the number of the copies that bring what was sent for last

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

    def is_coming(self, request: Request) -> bool:
        """Whether a long beginning of a request whose turn it is is on its way to the device, where it should be before
        its first step: else everybody in that step would wait for it."""
        key, limit = request.key, request.hit_limit()
        if self._cache.host is None or self._force_miss:
            return False
        if self._cache.is_coming(key, limit):
            return True
        promised = max(self._cache.promise(key, limit), request.fetch.num_read if request.fetch else 0)
        if promised - self._cache.match(key, limit) < LEAST_SENT_AHEAD:
            return False
        if self._cache.has_come(self._sent):
            self._sent = self._cache.send_for(key, limit, request.fetch)
        return self._sent > 0
