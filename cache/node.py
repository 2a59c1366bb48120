"""One edge of the tree and what each component keeps on it."""

from corymb.cache.key import TOKEN_BYTES, Edge
from corymb.cache.slots import Int32


class Node:
    """A run of whole pages of tokens after its parent's. Lists hold one entry a component.

    A component whose value is None here while the node stands is a *tombstone*.
    """

    __slots__ = (
        "children",
        "deepest",
        "edge",
        "hits",
        "id",
        "length",
        "locks",
        "parent",
        "priority",
        "queued",
        "stamps",
        "start",
        "tokens",
        "values",
    )

    def __init__(self, node_id: int, num_components: int) -> None:
        self.id = node_id
        self.edge: Edge = b""  # this node's name in its parent's `children`
        self.tokens = b""
        self.start = 0  # tokens of the sequence before this node
        self.length = 0
        self.parent: Node | None = None
        self.children: dict[Edge, Node] = {}
        self.values: list[Int32 | None] = [None] * num_components
        self.locks = [0] * num_components
        self.stamps = [0] * num_components  # logical time of last use, by the component's own refresh rule
        self.queued = [0] * num_components  # serial of its entry in the component's victim heap; 0 for none
        self.hits = 0  # finished sequences that ran through this node
        self.priority = 0
        self.deepest = 0  # tokens of the longest sequence that ran through this node, even if its end is gone

    @property
    def stop(self) -> int:
        """Tokens of the sequence up to this node's end."""
        return self.start + self.length

    def hang(self, edge: Edge, tokens: bytes, parent: "Node") -> None:
        """Makes this node the child of `parent` that spells `tokens`."""
        self.edge, self.tokens, self.length = edge, tokens, len(tokens) // TOKEN_BYTES
        self.start = parent.start + parent.length
        self.parent = parent
        parent.children[edge] = self
