"""Which node goes next."""

import heapq
from collections.abc import Callable

from corymb.cache.node import Node

Rank = tuple[int, ...]
Entry = tuple[Rank, int, Node]


class Victims:
    """A heap over the nodes that one component could evict, lowest rank first; entries may be out of date.

    A node has at most one entry that counts, the one with the serial in its `queued`, and a node that may go always has
    one. Ranks grow while a node stands, so an entry is at worst too early: it is brought up to date when it reaches the
    top. Touching a node thus costs nothing here, and an eviction costs the logarithm of the tree, not its size. Where a
    rank falls, `renew` must be told.
    """

    __slots__ = ("_entries", "_index", "_is_victim", "_num_void", "_rank", "_serial")

    def __init__(self, index: int, rank: Callable[[Node], Rank], is_victim: Callable[[Node], bool]) -> None:
        self._index = index
        self._rank = rank
        self._is_victim = is_victim
        self._entries: list[Entry] = []
        self._serial = 0  # settles equal ranks, so that nodes are never compared
        self._num_void = 0  # entries that no longer count

    def offer(self, node: Node) -> None:
        """Enters a node that may have become a victim."""
        if not node.queued[self._index] and self._is_victim(node):
            self._push(node)

    def renew(self, node: Node) -> None:
        """The node's rank may have fallen."""
        if node.queued[self._index]:
            self._void(node)
            self._push(node)

    def pop(self) -> Node | None:
        """Takes out the node to evict next; None when nothing may go."""
        while self._entries:
            rank, serial, node = self._entries[0]
            counts = node.queued[self._index] == serial
            victim = counts and self._is_victim(node)
            if victim and (current := self._rank(node)) != rank:
                heapq.heapreplace(self._entries, (current, serial, node))
                continue
            heapq.heappop(self._entries)
            if counts:
                node.queued[self._index] = 0
            else:
                self._num_void -= 1
            if victim:
                return node
        return None

    def forget(self, node: Node) -> None:
        """Notes that a node has left the tree."""
        if node.queued[self._index]:
            self._void(node)

    def nodes(self) -> list[Node]:
        """Returns the nodes that have an entry that counts, for checks."""
        return [node for _, _, node in filter(self._counts, self._entries)]

    def _push(self, node: Node) -> None:
        self._serial += 1
        node.queued[self._index] = self._serial
        heapq.heappush(self._entries, (self._rank(node), self._serial, node))

    def _void(self, node: Node) -> None:
        """The heap is swept when half of it no longer counts."""
        node.queued[self._index] = 0
        self._num_void += 1
        if self._num_void * 2 > len(self._entries) > 64:
            self._entries = list(filter(self._counts, self._entries))
            heapq.heapify(self._entries)
            self._num_void = 0

    def _counts(self, entry: Entry) -> bool:
        return entry[2].queued[self._index] == entry[1]
