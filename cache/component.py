"""What one kind of attention state must answer so that the tree can carry it.

Four kinds there are:

| kind      | value on a node             | valid end of a match             | lock covers        | victims            |
|-----------|-----------------------------|----------------------------------|--------------------|--------------------|
| full      | its full slots              | every node                       | node to root       | unlocked leaves    |
| sliding   | its full slots, twins alive | a window of live nodes ends here | a window of tokens | any unlocked, live |
| recurrent | one state slot              | this node holds a state          | the node alone     | any unlocked, live |
| index     | none: lives in full's slots | every node                       | nothing            | none               |
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

from corymb.cache.actions import Actions
from corymb.cache.eviction import FULL
from corymb.cache.key import Key
from corymb.cache.node import Node
from corymb.cache.slots import Int32
from corymb.cache.victims import Rank, Victims

Validator = Callable[[Node, int], bool]  # a node and how many of its tokens match → may a hit end there?


@dataclass(frozen=True, slots=True)
class Arrival:
    """A computed sequence on its way into the tree.

    [0, num_shared) came from the tree   [num_shared, num_tokens) the owner's, given to the tree by the insert

    `states` go over to the tree too: each has seen whole pages, `num_shared` tokens at least, `num_tokens` at most.
    """

    key: Key
    slots: Int32  # full slots of [0, num_tokens), a whole number of pages
    num_shared: int
    finished: bool = True  # False between two chunks of one request: counts as no further use
    priority: int = 0
    marks: Mapping[str, int] = field(default_factory=dict)  # by component, what it has to know of this sequence
    states: Mapping[int, int] = field(default_factory=dict)  # slots of recurrent states, by tokens seen

    @property
    def num_tokens(self) -> int:
        """Where the insert stops."""
        return len(self.slots)


class Component(ABC):
    """One kind of state. `index` is its place in every node's lists; 0 is the full component, which all trees have.

    Evicting a component from an inner node also evicts there every component of equal or lower `cascade`; on a leaf any
    eviction takes the whole node.
    """

    name: str
    cascade: int

    def __init__(self, index: int) -> None:
        self.index = index
        self.evictable = 0  # tokens (or states) on unlocked nodes
        self.locked = 0  # on locked nodes
        self.num_holding = 0  # nodes with a value
        self.now = 0  # logical time of the insert in progress
        self.victims = Victims(index, self.rank, self.is_victim)

    # ── match ──

    def validator(self) -> Validator | None:
        """Returns a fresh function for one walk, which is called with every node from the root down; None where every
        node is a valid end. It must give the answer that it would give after a split where the match ends."""
        return None

    def refresh(self, node: Node, stamp: int) -> None:
        """Marks what a sequence that ends at `node` makes recently used."""
        node.stamps[self.index] = stamp

    # ── locks ──

    @abstractmethod
    def mark(self, node: Node) -> int:
        """Returns the receipt of a lock at `node`: what `covered` needs to find the same nodes again."""

    @abstractmethod
    def covered(self, node: Node, mark: int) -> Iterator[Node]:
        """Yields the nodes that a lock covers, upward; after splits, both parts of what it covered."""

    def lock(self, node: Node) -> int:
        """Pins what a sequence that ends at `node` reads. Returns the mark that `unlock` needs."""
        mark, index = self.mark(node), self.index
        for pinned in self.covered(node, mark):
            pinned.locks[index] += 1
            if pinned.locks[index] == 1:
                size = self.size(pinned)
                self.evictable -= size
                self.locked += size
        return mark

    def unlock(self, node: Node, mark: int) -> None:
        """Undoes the `lock` that returned `mark`."""
        index = self.index
        for pinned in self.covered(node, mark):
            pinned.locks[index] -= 1
            if pinned.locks[index] == 0:
                size = self.size(pinned)
                self.evictable += size
                self.locked -= size
                self.victims.offer(pinned)

    # ── split ──

    @abstractmethod
    def split(self, upper: Node, lower: Node) -> None:
        """Shares out value and locks between `lower`, which kept its id and end, and `upper`, its new parent.
        Tokens and edges are already shared out; stamps are copied."""

    # ── insert ──

    def cut(self, node: Node, arrival: Arrival) -> int | None:
        """Returns a position inside a matching node where it must be split before `meet`, or None."""
        del node, arrival
        return None

    def meet(self, node: Node, arrival: Arrival, actions: Actions) -> None:
        """The arrival brings its own slots for the tokens of a standing node: takes over what helps, frees the rest."""
        del node, arrival, actions

    def cuts(self, start: int, stop: int, arrival: Arrival) -> list[int]:
        """Returns positions in (start, stop) that must be node ends in the new branch [start, stop)."""
        del start, stop, arrival
        return []

    def attach(self, node: Node, arrival: Arrival) -> None:
        """Gives a new node of the arrival's branch its value. Full comes first."""
        del node, arrival

    def finish(self, node: Node, arrival: Arrival, actions: Actions) -> None:
        """The insert ended at `node`, or at the root: attaches or frees what belongs to the end alone."""
        del node, arrival, actions

    # ── eviction ──

    def is_victim(self, node: Node) -> bool:
        """Says whether this component may be evicted from the node."""
        return node.parent is not None and node.values[self.index] is not None and not node.locks[self.index]

    def rank(self, node: Node) -> Rank:
        """Orders victims, lowest first; least recently used by default, and of one path the node nearest to the root.
        Must not fall while the node stands, unless `victims.renew` is told."""
        return (node.stamps[self.index], node.start)

    def size(self, node: Node) -> int:
        """Returns how much of the component's pool the node holds."""
        return node.length if node.values[self.index] is not None else 0

    def put(self, node: Node, value: Int32) -> None:
        """Sets the value of a node that has none."""
        assert node.values[self.index] is None
        node.values[self.index] = value
        self.num_holding += 1
        if node.locks[self.index]:
            self.locked += self.size(node)
        else:
            self.evictable += self.size(node)
            self.victims.offer(node)

    def drop(self, node: Node, actions: Actions) -> int:
        """Frees the node's unlocked value, if any, and returns how much that was."""
        value = node.values[self.index]
        if value is None or node.locks[self.index]:
            return 0
        size = self.size(node)
        self.evictable -= size
        node.values[self.index] = None
        self.num_holding -= 1
        actions.free(self.name, value)
        return size

    # ── checks ──

    def check(self, node: Node) -> None:
        """Raises AssertionError when the node breaks a rule of this component."""
        assert node.values[self.index] is None or node.values[FULL] is not None, "state without full state"
        assert 0 <= node.locks[self.index] <= node.locks[FULL], "locked more often here than in full"


def path_up(node: Node, stop: int) -> Iterator[Node]:
    """Yields `node` and its ancestors that start at position `stop` or later; never the root."""
    current: Node | None = node
    while current is not None and current.parent is not None and current.start >= stop:
        yield current
        current = current.parent
