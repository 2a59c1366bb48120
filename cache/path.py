"""All that a tree keeps of one sequence, to be carried to another memory."""

from dataclasses import dataclass

import numpy as np

from corymb.cache.eviction import FULL
from corymb.cache.key import Int32, Key, Namespace
from corymb.cache.node import Node


@dataclass(frozen=True, slots=True)
class Path:
    """A sequence from its first token on. Good until the slots it names are freed."""

    namespace: Namespace
    tokens: bytes
    slots: Int32  # full slots, one a token
    live_from: int  # sliding state of [live_from, end) is there
    states: dict[int, int]  # slots of recurrent states, by tokens seen

    @property
    def num_tokens(self) -> int:
        """Where it ends."""
        return len(self.slots)

    def key(self, stop: int) -> Key:
        """What its first `stop` tokens are called."""
        return Key(np.frombuffer(self.tokens, np.int32, stop), *self.namespace)


def path_to(node: Node, sliding: int | None, recurrent: int | None) -> Path:
    """What is kept from the root to the end of `node`, not the root itself; None for components that are not there."""
    nodes: list[Node] = []
    states: dict[int, int] = {}
    live_from, is_live = node.stop, sliding is not None
    current = node
    while current.parent is not None:
        nodes.append(current)
        is_live = is_live and sliding is not None and current.values[sliding] is not None
        live_from = current.start if is_live else live_from
        if recurrent is not None and (state := current.values[recurrent]) is not None:
            states[current.stop] = int(state[0])
        current = current.parent
    nodes.reverse()
    edge = nodes[0].edge
    assert isinstance(edge, tuple), "the first node below the root has the namespace in its name"
    slots = [slots for each in nodes if (slots := each.values[FULL]) is not None]
    return Path(edge[0], b"".join(each.tokens for each in nodes), np.concatenate(slots), live_from, states)
