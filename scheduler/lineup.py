"""Arranges the queue for one round of admission."""

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random

import numpy as np

from corymb.cache.cache import Cache
from corymb.scheduler import order
from corymb.scheduler.branches import dfs_weight
from corymb.scheduler.config import SchedulerConfig
from corymb.scheduler.plan import Int32
from corymb.scheduler.request import Request


@dataclass(frozen=True, slots=True)
class Arranged:
    """Waiting requests, the first to admit first."""

    requests: list[Request]
    uncached: Int32 | None  # tokens each would have to compute; None where the order does not look at the tree


class Lineup:
    """Knows the configured order."""

    def __init__(self, config: SchedulerConfig, cache: Cache) -> None:
        """Reads the tree through `cache`, changes nothing."""
        self._config = config
        self._cache = cache
        self._random = Random(config.random_seed)  # noqa: S311 - an order, not a secret

    def arrange(self, waiting: Sequence[Request], running: Sequence[str | None], processed: int) -> Arranged:
        """`running`: routing keys of running requests; `processed`: tokens prefilled so far, ever."""
        caching = self._cache.config.enable_prefix_cache
        now = order.for_this_round(self._config.schedule_policy, num_waiting=len(waiting), caching=caching)
        if now in order.MATCHING:
            return self._by_tree(now, waiting, processed)
        urgency = [each.urgency for each in waiting] if self._config.enable_priority_scheduling else None
        if now == "lof":
            indices = order.lof([each.sampling.max_new_tokens for each in waiting], urgency)
        elif now == "random":
            indices = order.shuffled(len(waiting), self._random)
        elif now == "routing-key":
            indices = order.routing_key([each.routing_key for each in waiting], running)
        else:
            indices = order.fcfs([each.entered for each in waiting], urgency)
        return Arranged([waiting[i] for i in indices], None)

    def _by_tree(self, now: str, waiting: Sequence[Request], processed: int) -> Arranged:
        keys = [each.key for each in waiting]
        matched = [self._match(each) for each in waiting]
        uncached = [len(key.token_ids) - hit for key, hit in zip(keys, matched, strict=True)]
        repeats = order.in_batch_repeats(keys, matched, self._config.in_batch_prefix_threshold).tolist()
        if now == "lpm":
            indices = order.lpm(matched, repeats)
        elif now == "dfs-weight":
            indices = dfs_weight(keys, matched)
        elif now == "hrrn":
            waited = [processed - each.processed_at_arrival for each in waiting]
            indices = order.hrrn(waited, uncached, repeats, [each.rid for each in waiting])
        else:
            indices = order.shortest_prefill_first(uncached, repeats, [each.entered for each in waiting])
        return Arranged([waiting[i] for i in indices], np.array(uncached, np.int32)[indices])

    def _match(self, request: Request) -> int:
        if self._config.test_force_cache_miss:
            return 0
        return self._cache.promise(request.key, request.hit_limit())
