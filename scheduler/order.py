"""The waiting orders, as pure functions on columns; `branches` has the eighth, dfs-weight.

Each returns indices of the queue, the first to admit first.
Columns are in order of entry and every tie keeps that order.
"""

import math
from collections import Counter
from collections.abc import Sequence
from random import Random

import numpy as np

from corymb.cache.key import Key
from corymb.scheduler.config import Order
from corymb.scheduler.plan import Bool, Int32

MATCHING: frozenset[Order] = frozenset({"lpm", "dfs-weight", "hrrn", "shortest-prefill-first"})  # look at the tree
CROWD = 128  # when more wait, matching them all costs more than it gains


def for_this_round(order: Order, *, num_waiting: int, caching: bool) -> Order:
    """The order in force: lpm and hrrn give way to fcfs in a crowd, those that look at the tree where there is none."""
    if order in MATCHING and not caching:
        return "fcfs"
    if order in {"lpm", "hrrn"} and num_waiting > CROWD:
        return "fcfs"
    return order


def fcfs(entered: Sequence[int], urgency: Sequence[int] | None = None) -> list[int]:
    """First come, first served; with priorities, the most urgent first."""
    if urgency is None:
        return sorted(range(len(entered)), key=lambda i: entered[i])
    return sorted(range(len(entered)), key=lambda i: (-urgency[i], entered[i]))


def lof(max_new: Sequence[int], urgency: Sequence[int] | None = None) -> list[int]:
    """Longest output first; with priorities, the most urgent first."""
    if urgency is None:
        return sorted(range(len(max_new)), key=lambda i: -max_new[i])
    return sorted(range(len(max_new)), key=lambda i: (-urgency[i], -max_new[i]))


def shuffled(count: int, random: Random) -> list[int]:
    """Any order."""
    return random.sample(range(count), count)


def routing_key(waiting: Sequence[str | None], running: Sequence[str | None]) -> list[int]:
    """Requests whose key is running most come first, so that equal keys share steps."""
    counts = Counter(key for key in running if key is not None)
    if not counts:
        return list(range(len(waiting)))

    def rank(i: int) -> tuple[int, int, str]:
        key = waiting[i]
        return (0, -counts[key], key) if key is not None and key in counts else (1, 0, key or "")

    return sorted(range(len(waiting)), key=rank)


def lpm(matched: Sequence[int], deprioritised: Sequence[bool]) -> list[int]:
    """Longest prefix match first."""
    return sorted(range(len(matched)), key=lambda i: math.inf if deprioritised[i] else -matched[i])


def hrrn(
    waited: Sequence[int], uncached: Sequence[int], deprioritised: Sequence[bool], rids: Sequence[str]
) -> list[int]:
    """Highest response ratio next: waiting, measured in tokens that others had prefilled, over own work."""

    def rank(i: int) -> tuple[float, str]:
        if deprioritised[i]:
            return math.inf, rids[i]
        return (-waited[i] / uncached[i] if uncached[i] else -math.inf), rids[i]

    return sorted(range(len(waited)), key=rank)


def shortest_prefill_first(uncached: Sequence[int], deprioritised: Sequence[bool], entered: Sequence[int]) -> list[int]:
    """Least to compute first."""
    return sorted(range(len(uncached)), key=lambda i: (deprioritised[i], max(1, uncached[i]), entered[i]))


def in_batch_repeats(keys: Sequence[Key], matched: Sequence[int], threshold: int) -> Bool:
    """Marks requests that had better wait for one ahead of them: the tree has at most `threshold` of their tokens,
    but an earlier request of this round starts with the same `threshold` tokens and will bring them into the tree.

    All a throwaway tree of the round would be asked is whether it knows the first `threshold` tokens of a request, so a
    set of such beginnings, namespace included, is that tree.
    """
    repeats = np.zeros(len(keys), np.bool_)
    if threshold < 0:
        return repeats
    seen: set[tuple[str | None, str | None, bytes]] = set()
    for i, key in enumerate(keys):
        if matched[i] > threshold or len(key.token_ids) < threshold:
            continue
        start = (key.extra_key, key.cache_salt, key.token_ids[:threshold].tobytes())
        repeats[i] = start in seen
        seen.add(start)
    return repeats


def cap_chunk(remainder: int, budget: int, page_size: int, waiting: Int32) -> int:
    """Under shortest-prefill-first: how much of `budget` a chunk in progress may take this step.

    Waiting requests that need less than the chunk still does are served beside it, shortest first, while they fit.
    """
    reserved = 0
    for uncached in sorted(int(each) for each in waiting if each < remainder):
        need = -(-uncached // page_size) * page_size
        if reserved + need > budget - page_size:
            break
        reserved += need
    return max((budget - reserved) // page_size * page_size, page_size)
