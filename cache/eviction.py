"""In which order unused leaves go: lowest rank first."""

from collections.abc import Callable, Mapping

from corymb.cache.node import Node
from corymb.cache.victims import Rank

FULL = 0  # index of the full component in a node's lists
PROTECTED_HITS = 2  # slru: so many finished sequences make a node worth keeping


def lru(node: Node) -> Rank:
    """Least recently used first."""
    return (node.stamps[FULL],)


def lfu(node: Node) -> Rank:
    """Least often used first."""
    return (node.hits, node.stamps[FULL])


def slru(node: Node) -> Rank:
    """What was used once goes before what was used again; least recently used first within both."""
    return (int(node.hits >= PROTECTED_HITS), node.stamps[FULL])


def priority(node: Node) -> Rank:
    """What only requests of low priority used goes first."""
    return (node.priority, node.stamps[FULL])


ORDERS: Mapping[str, Callable[[Node], Rank]] = {"lru": lru, "lfu": lfu, "slru": slru, "priority": priority}
