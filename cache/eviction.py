"""In which order unused leaves go: lowest rank first."""

from collections.abc import Callable, Mapping

from corymb.cache.node import Node
from corymb.cache.victims import Rank

FULL = 0  # index of the full component in a node's lists
Order = Callable[[Node], Rank]

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


def tail_optimised(slack: int) -> Order:
    """Tail-optimised LRU ("Tail-Optimized Caching for LLM Inference", arXiv 2510.15152): first what a conversation can
    lose without its next turn becoming slow, then the rest; least recently used first within both.

    A conversation whose longest sequence had L tokens comes back with about L + Q. Its turn is fast enough while at
    most X of them have to be computed: L + Q - X must stay cached, and what lies behind that is safe to drop. Only
    X - Q matters: `slack`, in tokens. L is a high-water mark and does not sink when the end is dropped: else every pass
    would find a new end to drop, until the conversation was gone.
    """

    def tlru(node: Node) -> Rank:
        return (int(node.start < node.deepest - slack), node.stamps[FULL])

    return tlru


def order_of(name: str, slack: int) -> Order:
    """Returns the order with this name; `slack` is for tlru."""
    return tail_optimised(slack) if name == "tlru" else ORDERS[name]


ORDERS: Mapping[str, Order] = {"lru": lru, "lfu": lfu, "slru": slru, "priority": priority}
