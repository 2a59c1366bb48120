"""The index of sparse attention: a second tensor over full's slots."""

from collections.abc import Iterator

from corymb.cache.component import Component
from corymb.cache.node import Node


class Index(Component):
    """Lives in full's slots, is read and locked with them, and dies with them: so it keeps nothing of its own, and is
    here for those who must know that a slot holds more than keys and values."""

    name = "index"
    cascade = 2

    def mark(self, node: Node) -> int:
        """Full's lock is enough."""
        return node.stop

    def covered(self, node: Node, mark: int) -> Iterator[Node]:
        """Yields nothing."""
        del node, mark
        yield from ()

    def split(self, upper: Node, lower: Node) -> None:
        """Full's slots are split."""
