"""Recurrent state: what a sequence has become after exactly so many tokens."""

from collections.abc import Iterator

import numpy as np

from corymb.cache.actions import Actions
from corymb.cache.component import Arrival, Component, Validator
from corymb.cache.node import Node


class Recurrent(Component):
    """A node's value is the slot of the state after its last token. A state is copied before it is used, so a lock
    holds the one node that it is on, and only until then."""

    name = "recurrent"
    cascade = 0

    def __init__(self, index: int, max_per_path: int | None = None) -> None:
        """`max_per_path`: states that one sequence may leave on its way; None: any number."""
        super().__init__(index)
        self._max_per_path = max_per_path

    def validator(self) -> Validator:
        """A hit may end where a state is, and nowhere inside a node."""
        index = self.index
        return lambda node, count: node.values[index] is not None and count == node.length

    def mark(self, node: Node) -> int:
        """The node is all there is to find."""
        return node.stop

    def covered(self, node: Node, mark: int) -> Iterator[Node]:
        """Yields the node, which keeps its end when it is split."""
        del mark
        if node.parent is not None:
            yield node

    def split(self, upper: Node, lower: Node) -> None:
        """The state is that of the lower end; the upper end has none and is read by nobody."""

    def cut(self, node: Node, arrival: Arrival) -> int | None:
        """A node must end where the arrival brings a state."""
        return min((stop for stop in arrival.states if node.start < stop < node.stop), default=None)

    def cuts(self, start: int, stop: int, arrival: Arrival) -> list[int]:
        """See `cut`."""
        return [position for position in arrival.states if start < position < stop]

    def meet(self, node: Node, arrival: Arrival, actions: Actions) -> None:
        """Takes over a state that the node lacks."""
        if node.stop < arrival.num_tokens:
            self._settle(node, arrival, actions)

    def attach(self, node: Node, arrival: Arrival) -> None:
        """Gives a new node the state of its end, if the arrival brings it."""
        if node.stop in arrival.states and node.stop < arrival.num_tokens:
            self._put(node, arrival.states[node.stop])

    def finish(self, node: Node, arrival: Arrival, actions: Actions) -> None:
        """The state of the end may come when the tree has all tokens already."""
        self._settle(node, arrival, actions)
        if self._max_per_path is not None and node.parent is not None:
            self._thin(node, self._max_per_path, actions)

    def size(self, node: Node) -> int:
        """Counts states."""
        return int(node.values[self.index] is not None)

    def check(self, node: Node) -> None:
        """A value is one slot."""
        super().check(node)
        value = node.values[self.index]
        assert value is None or value.shape == (1,), "a state is one slot"

    def _settle(self, node: Node, arrival: Arrival, actions: Actions) -> None:
        slot = arrival.states.get(node.stop)
        if slot is None:
            return
        if node.values[self.index] is None:
            self._put(node, slot)
        else:
            actions.free(self.name, np.array([slot], np.int32))

    def _put(self, node: Node, slot: int) -> None:
        node.stamps[self.index] = self.now
        self.put(node, np.array([slot], np.int32))

    def _thin(self, end: Node, most: int, actions: Actions) -> None:
        """Of a path with more states than `most` drops those nearest to the root, but none that is locked, at the end,
        or where sequences part."""
        path: list[Node] = []
        node: Node | None = end
        while node is not None and node.parent is not None:
            if node.values[self.index] is not None:
                path.append(node)
            node = node.parent
        surplus = len(path) - most
        for held in reversed(path):
            if surplus <= 0:
                return
            if held is not end and len(held.children) == 1 and not held.locks[self.index]:
                self.drop(held, actions)
                surplus -= 1
