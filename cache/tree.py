"""The one radix tree: matches, inserts, locks and evicts every kind of attention state, and touches no pool itself."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from corymb.cache.actions import Actions
from corymb.cache.component import Arrival, Component
from corymb.cache.eviction import FULL, Order
from corymb.cache.full import Full
from corymb.cache.key import TOKEN_BYTES, Edge, Key, common_tokens
from corymb.cache.node import Node
from corymb.cache.path import Path
from corymb.cache.slots import Int32
from corymb.cache.walk import edge_at, walk

EMPTY = np.empty(0, np.int32)


@dataclass(frozen=True, slots=True)
class Match:
    """A usable prefix: its end, length and full slots, and how far each component alone would reach, full first."""

    node_id: int
    num_tokens: int
    slots: Int32
    reaches: Sequence[int]

    @property
    def num_full(self) -> int:
        """Tokens that the tree has of the sequence, usable or not."""
        return self.reaches[FULL]


@dataclass(frozen=True, slots=True)
class Inserted:
    """Where an insert ended and what has to be done to the pools."""

    node_id: int
    num_tokens: int
    actions: Actions


@dataclass(frozen=True, slots=True)
class Receipt:
    """A lock, to be handed back to `unlock` once. A mark of None: that component's part is already released."""

    serial: int
    node_id: int
    marks: tuple[int | None, ...]


class Tree:
    """Owns the nodes. Outside, a node is a number; what must happen to slots is returned as `Actions`."""

    def __init__(
        self,
        page_size: int,
        order: Order,
        auxiliary: Sequence[Component] = (),
    ) -> None:
        self.page_size = page_size
        self.full = Full(order)
        self.components: list[Component] = [self.full, *auxiliary]
        assert [component.index for component in self.components] == list(range(len(self.components)))
        self.nodes: dict[int, Node] = {}
        self.receipts: dict[int, Receipt] = {}
        self._page_bytes = page_size * TOKEN_BYTES
        self._last_id = -1
        self._last_serial = 0
        self._stamp = 0
        self.root = self._new_node()
        self.departure: Callable[[int], Path] | None = None  # what to note of a node before something of it is evicted

    @property
    def num_nodes(self) -> int:
        """Without the root."""
        return len(self.nodes) - 1

    @property
    def now(self) -> int:
        """Logical time: matches and inserts so far."""
        return self._stamp

    # ── match ──

    def measure(self, key: Key, limit: int) -> int:
        """Returns the length of the usable prefix of the first `limit` tokens, and leaves no trace."""
        tokens = key.tokens(limit, self.page_size)
        return walk(self.root, key.namespace, tokens, self.page_size, self.components).num_tokens

    def match(self, key: Key, limit: int) -> Match:
        """Finds the longest usable prefix of the first `limit` tokens, makes a node end there, and marks it as used."""
        return self._match(key, limit, self.components)

    def peek(self, key: Key, limit: int) -> Match:
        """Like `match`, and leaves no trace: the node may go on behind the match."""
        tokens = key.tokens(limit, self.page_size)
        found = walk(self.root, key.namespace, tokens, self.page_size, self.components)
        node = found.path[-1] if found.path else self.root
        return Match(node.id, found.num_tokens, _slots(found.path)[: found.num_tokens], found.reaches)

    def reach(self, key: Key, limit: int) -> Match:
        """Like `match`, of all tokens that the tree has, usable or not."""
        return self._match(key, limit, [self.full])

    def reaches(self, key: Key, limit: int) -> Sequence[int]:
        """Returns how far each component alone would reach, and leaves no trace."""
        tokens = key.tokens(limit, self.page_size)
        return walk(self.root, key.namespace, tokens, self.page_size, self.components).reaches

    def _match(self, key: Key, limit: int, components: Sequence[Component]) -> Match:
        tokens = key.tokens(limit, self.page_size)
        found = walk(self.root, key.namespace, tokens, self.page_size, components)
        if not found.path:
            return Match(self.root.id, 0, EMPTY, found.reaches)
        path = found.path
        if found.num_tokens < path[-1].stop:
            path[-1] = self._split(path[-1], found.num_tokens - path[-1].start)
        self._stamp += 1
        self._refresh(path[-1])
        return Match(path[-1].id, found.num_tokens, _slots(path), found.reaches)

    def slots(self, node_id: int, start: int) -> Int32:
        """Returns the full slots of the sequence that ends at the node, from `start`, a node's start, on."""
        path: list[Node] = []
        node = self.nodes[node_id]
        while node.parent is not None and node.start >= start:
            path.append(node)
            node = node.parent
        return _slots(path[::-1])

    def value(self, node_id: int, component: Component) -> Int32 | None:
        """Returns what a component keeps on the node; None for a tombstone."""
        return self.nodes[node_id].values[component.index]

    # ── insert ──

    def insert(self, arrival: Arrival) -> Inserted:
        """Takes a sequence in. Slots it brings for tokens that the tree already has are freed or put to use."""
        actions = Actions()
        self._stamp += 1
        for component in self.components:
            component.now = self._stamp
        tokens, namespace = arrival.key.tokens(arrival.num_tokens, self.page_size), arrival.key.namespace
        node, at = self.root, 0
        while at < len(tokens):
            edge = edge_at(namespace, tokens, at, self._page_bytes)
            child = node.children.get(edge)
            if child is None:
                node = self._grow_branch(node, edge, tokens[at:], arrival)
                break
            count = common_tokens(child.tokens, tokens, at, self.page_size)
            node = self._meet(child, count, arrival, actions)
            at += node.length * TOKEN_BYTES
        for component in self.components:
            component.finish(node, arrival, actions)
        self._refresh(node)
        return Inserted(node.id, node.stop, actions)

    def _meet(self, node: Node, count: int, arrival: Arrival, actions: Actions) -> Node:
        """The arrival runs through the first `count` tokens of a node, or fewer where a component wants a cut first."""
        ours = node.start >= arrival.num_shared
        cuts = [component.cut(node, arrival) for component in self.components] if ours else []
        stop = min([node.start + count, *(cut for cut in cuts if cut is not None)])
        if stop < node.stop:
            node = self._split(node, stop - node.start)
        node.hits += arrival.finished
        node.priority = max(node.priority, arrival.priority)
        node.deepest = max(node.deepest, arrival.num_tokens)
        if ours:
            for component in reversed(self.components):
                component.meet(node, arrival, actions)
        return node

    def _grow_branch(self, parent: Node, edge: Edge, tokens: bytes, arrival: Arrival) -> Node:
        """Hangs what the tree does not have below `parent`, in as many nodes as the components ask for."""
        start = parent.stop
        stop = start + len(tokens) // TOKEN_BYTES
        cuts = {cut for component in self.components for cut in component.cuts(start, stop, arrival)}
        node = parent
        for end in [*sorted(cuts), stop]:
            part = tokens[(node.stop - start) * TOKEN_BYTES : (end - start) * TOKEN_BYTES]
            parent, node = node, self._new_node()
            node.hang(edge if parent.stop == start else part[: self._page_bytes], part, parent)
            node.hits, node.priority, node.deepest = int(arrival.finished), arrival.priority, arrival.num_tokens
            node.stamps = [self._stamp] * len(self.components)
            for component in self.components:
                component.attach(node, arrival)
        self.full.victims.offer(node)
        return node

    def _split(self, lower: Node, count: int) -> Node:
        """Parts the first `count` tokens off into a new parent and returns it; the node keeps its id and its end."""
        upper, parent = self._new_node(), lower.parent
        assert parent is not None
        upper.hang(lower.edge, lower.tokens[: count * TOKEN_BYTES], parent)
        rest = lower.tokens[count * TOKEN_BYTES :]
        lower.hang(rest[: self._page_bytes], rest, upper)
        upper.hits, upper.priority, upper.deepest = lower.hits, lower.priority, lower.deepest
        upper.stamps = lower.stamps.copy()
        for component in self.components:
            component.split(upper, lower)
        self.full.victims.renew(lower)  # it begins later now, and may go earlier for that
        return upper

    # ── locks ──

    def lock(self, node_id: int) -> Receipt:
        """Pins what a sequence that ends at the node reads, until the receipt comes back."""
        node = self.nodes[node_id]
        marks = tuple(component.lock(node) for component in self.components)
        self._last_serial += 1
        return self._remember(Receipt(self._last_serial, node_id, marks))

    def unlock(self, receipt: Receipt) -> None:
        """Undoes exactly the lock that gave this receipt."""
        assert self.receipts.pop(receipt.serial, None) == receipt, f"not the receipt of an open lock: {receipt}"
        node = self.nodes[receipt.node_id]
        # Full last: no other state may be locked where full is not.
        for component, mark in zip(reversed(self.components), reversed(receipt.marks), strict=True):
            if mark is not None:
                component.unlock(node, mark)

    def unlock_part(self, receipt: Receipt, component: Component) -> Receipt:
        """Releases one auxiliary component's part early. Returns the receipt that stands for the rest."""
        mark = receipt.marks[component.index]
        assert self.receipts.get(receipt.serial) == receipt, f"not the receipt of an open lock: {receipt}"
        assert component.index != FULL
        assert mark is not None, "released twice"
        component.unlock(self.nodes[receipt.node_id], mark)
        marks = [*receipt.marks]
        marks[component.index] = None
        return self._remember(Receipt(receipt.serial, receipt.node_id, tuple(marks)))

    def _remember(self, receipt: Receipt) -> Receipt:
        self.receipts[receipt.serial] = receipt
        return receipt

    # ── eviction ──

    def evict(self, demand: Mapping[str, int]) -> Actions:
        """Evicts until so much of each named component has become free, or nothing more may go."""
        actions, freed = Actions(), [0] * len(self.components)
        for component in self.components:
            wanted = demand.get(component.name, 0)
            while freed[component.index] < wanted:
                victim = component.victims.pop()
                if victim is None:
                    break
                self._evict(victim, component, actions, freed)
        return actions

    def clear(self) -> Actions:
        """Drops every node. No lock may be open."""
        assert not self.receipts, "cannot clear a tree with open locks"
        return self.evict({self.full.name: self.full.evictable})

    def _evict(self, node: Node, component: Component, actions: Actions, freed: list[int]) -> None:
        if self.departure is not None:
            actions.departures.append(self.departure(node.id))
        whole = not node.children and not node.locks[FULL]
        for other in self.components:
            if whole or other.cascade <= component.cascade:
                freed[other.index] += other.drop(node, actions)
        if whole:
            self._remove(node)

    def _remove(self, node: Node) -> None:
        parent = node.parent
        assert parent is not None
        del parent.children[node.edge]
        del self.nodes[node.id]
        node.parent = None
        for component in self.components:
            component.victims.forget(node)
            component.victims.offer(parent)

    # ── nodes ──

    def _new_node(self) -> Node:
        self._last_id += 1
        node = Node(self._last_id, len(self.components))
        self.nodes[node.id] = node
        return node

    def _refresh(self, node: Node) -> None:
        for component in self.components:
            component.refresh(node, self._stamp)


def _slots(path: Iterable[Node]) -> Int32:
    parts = [part for node in path if (part := node.values[FULL]) is not None]
    return parts[0] if len(parts) == 1 else np.concatenate(parts) if parts else EMPTY
