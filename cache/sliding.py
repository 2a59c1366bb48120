"""Sliding-window attention: only the last tokens before a hit's end are ever read."""

from collections.abc import Iterator

from corymb.cache.actions import Actions
from corymb.cache.component import Arrival, Component, Validator, path_up
from corymb.cache.eviction import FULL
from corymb.cache.node import Node


class Sliding(Component):
    """Twins, in a smaller pool, of full slots. The value of a node is its full slots while all their twins live.

    An arrival's mark is the position up to which its owner has already freed the twins.
    """

    name = "sliding"
    cascade = 1

    def __init__(self, index: int, window: int, page_size: int) -> None:
        super().__init__(index)
        self.reach = max(window - 1, 1)  # earlier tokens that a query reads
        # One page more than a window: a prompt sent again is matched up to its last token but one, so up to one page
        # before the end of the branch, and must find a window there.
        self.tail = self.reach + -self.reach % page_size + page_size

    def validator(self) -> Validator:
        """A hit may end where the live run before it covers what a query reads."""
        return _LiveRun(self.index, self.reach)

    def refresh(self, node: Node, stamp: int) -> None:
        """Only the tail of a path was read. Refreshing all of it would keep what no window reaches."""
        for used in path_up(node, self._start_above(node, self.tail)):
            used.stamps[self.index] = stamp

    def mark(self, node: Node) -> int:
        """Returns the position from which the lock reaches to the node's end."""
        return self._start_above(node, self.reach)

    def covered(self, node: Node, mark: int) -> Iterator[Node]:
        """Yields upward until a window is covered, tombstones included."""
        return path_up(node, mark)

    def split(self, upper: Node, lower: Node) -> None:
        """Follows the full component's slices."""
        index = self.index
        if lower.values[index] is not None:
            upper.values[index], lower.values[index] = upper.values[FULL], lower.values[FULL]
            self.num_holding += 1
        upper.locks[index] = lower.locks[index]
        self.victims.offer(upper)

    def cut(self, node: Node, arrival: Arrival) -> int | None:
        """A tombstone is filled from where the arrival's twins still live."""
        edge = arrival.marks.get(self.name, 0)
        return edge if node.values[self.index] is None and node.start < edge < node.stop else None

    def meet(self, node: Node, arrival: Arrival, actions: Actions) -> None:
        """Fills a tombstone with the arrival's twins; the node keeps its full slots, which others may be reading."""
        slots = arrival.slots[node.start : node.stop]
        if node.values[self.index] is None and node.start >= arrival.marks.get(self.name, 0):
            kept = node.values[FULL]
            assert kept is not None
            actions.move(self.name, slots, kept)
            self.put(node, kept)
        else:
            actions.free(self.name, slots)

    def cuts(self, start: int, stop: int, arrival: Arrival) -> list[int]:
        """Parts the dead from the living, and the last window from the rest: a lock pins whole nodes, and one on a long
        leaf would pin all of it."""
        edge = arrival.marks.get(self.name, 0)
        return [cut for cut in (edge, stop - self.tail) if start < cut < stop and cut >= edge]

    def attach(self, node: Node, arrival: Arrival) -> None:
        """Nodes before the mark start as tombstones."""
        slots = node.values[FULL]
        assert slots is not None
        if node.start >= arrival.marks.get(self.name, 0):
            self.put(node, slots)

    def check(self, node: Node) -> None:
        """A live node's value is its full slots."""
        super().check(node)
        assert node.values[self.index] is None or node.values[self.index] is node.values[FULL], "twins of other slots"

    def _start_above(self, node: Node, num_tokens: int) -> int:
        """Returns where the node begins that holds the token `num_tokens` before the end of `node`."""
        first = node.stop - num_tokens
        current = node
        while current.start > first and current.parent is not None:
            current = current.parent
        return current.start


class _LiveRun:
    """Counts the live tokens that end at the node visited last. From the root nothing is missing yet."""

    __slots__ = ("_index", "_reach", "_run")

    def __init__(self, index: int, reach: int) -> None:
        self._index = index
        self._reach = reach
        self._run = reach

    def __call__(self, node: Node, num_tokens: int) -> bool:
        self._run = self._run + num_tokens if node.values[self._index] is not None else 0
        return self._run >= self._reach
