"""Which node goes next."""

import heapq
from collections.abc import Callable

from corymb.cache.node import Node

Rank = tuple[int, ...]


class Victims:
    """A heap over the nodes that one component could evict, lowest rank first; entries may be out of date.

    A node has at most one entry, and a node that may go always has one. Ranks only grow while a node stands, so an
    entry is at worst too early: it is brought up to date when it reaches the top. Touching a node thus costs nothing
    here, and an eviction costs the logarithm of the tree, not its size.
    """

    __slots__ = ("_entries", "_index", "_is_victim", "_num_gone", "_rank", "_serial")

    def __init__(self, index: int, rank: Callable[[Node], Rank], is_victim: Callable[[Node], bool]) -> None:
        self._index = index
        self._rank = rank
        self._is_victim = is_victim
        self._entries: list[tuple[Rank, int, Node]] = []
        self._serial = 0  # settles equal ranks, so that nodes are never compared
        self._num_gone = 0  # entries of nodes that have left the tree

    def offer(self, node: Node) -> None:
        """Enters a node that may have become a victim."""
        if node.queued[self._index] or not self._is_victim(node):
            return
        node.queued[self._index] = True
        self._serial += 1
        heapq.heappush(self._entries, (self._rank(node), self._serial, node))

    def pop(self) -> Node | None:
        """Takes out the node to evict next; None when nothing may go."""
        while self._entries:
            rank, serial, node = self._entries[0]
            victim = self._is_victim(node)
            if victim and (current := self._rank(node)) != rank:
                heapq.heapreplace(self._entries, (current, serial, node))
                continue
            heapq.heappop(self._entries)
            node.queued[self._index] = False
            if victim:
                return node
            self._num_gone -= node.parent is None
        return None

    def forget(self, node: Node) -> None:
        """Notes that a node has left the tree; the heap is swept when half of it is such nodes."""
        self._num_gone += node.queued[self._index]
        if self._num_gone * 2 > len(self._entries) > 64:
            self._entries = [entry for entry in self._entries if entry[2].parent is not None]
            heapq.heapify(self._entries)
            self._num_gone = 0

    def nodes(self) -> list[Node]:
        """Returns the nodes that have an entry, for checks."""
        return [node for _, _, node in self._entries]
