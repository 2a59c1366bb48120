"""Full attention: every token's keys and values, for as long as the node stands."""

from collections.abc import Iterator

from corymb.cache.actions import Actions
from corymb.cache.component import Arrival, Component, path_up
from corymb.cache.eviction import FULL, Order
from corymb.cache.node import Node
from corymb.cache.victims import Rank


class Full(Component):
    """The base of every tree: a node lives exactly as long as its full value."""

    name = "full"
    cascade = 2

    def __init__(self, order: Order) -> None:
        self._order = order
        super().__init__(FULL)

    def refresh(self, node: Node, stamp: int) -> None:
        """A sequence uses its whole path."""
        current: Node | None = node
        while current is not None:
            current.stamps[FULL] = stamp
            current = current.parent

    def mark(self, node: Node) -> int:
        """Locks reach to the root."""
        del node
        return 0

    def covered(self, node: Node, mark: int) -> Iterator[Node]:
        """Yields node to root."""
        return path_up(node, mark)

    def split(self, upper: Node, lower: Node) -> None:
        """Slices the slots. Copies, so that evicting one half returns its memory."""
        slots = lower.values[FULL]
        assert slots is not None
        upper.values[FULL] = slots[: upper.length].copy()
        lower.values[FULL] = slots[upper.length :].copy()
        upper.locks[FULL] = lower.locks[FULL]
        self.num_holding += 1

    def meet(self, node: Node, arrival: Arrival, actions: Actions) -> None:
        """The tree has these tokens: the arrival's slots are duplicates."""
        actions.free(self.name, arrival.slots[node.start : node.stop])

    def attach(self, node: Node, arrival: Arrival) -> None:
        """Takes the arrival's slots. The copy outlives the row of the request table that they come from."""
        self.put(node, arrival.slots[node.start : node.stop].copy())

    def is_victim(self, node: Node) -> bool:
        """Only whole unlocked leaves go."""
        return not node.children and not node.locks[FULL] and node.parent is not None

    def rank(self, node: Node) -> Rank:
        """By the configured order."""
        return self._order(node)

    def check(self, node: Node) -> None:
        """Every node holds a slot a token."""
        slots = node.values[FULL]
        assert slots is not None, "node without full state"
        assert len(slots) == node.length, "slots and tokens differ in number"
