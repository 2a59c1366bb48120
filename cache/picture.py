"""A picture of the tree for people: its shape and what each node holds, but no tokens."""

import heapq
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from corymb.cache.eviction import FULL
from corymb.cache.node import Node

if TYPE_CHECKING:
    from corymb.cache.tree import Tree

TierName = Literal["device", "host"]


@dataclass(frozen=True, slots=True)
class NodePicture:
    """One node."""

    id: int
    parent: int | None  # None for the root
    length: int  # tokens of its edge
    leases: int  # running requests that pin it
    age: int  # matches and inserts since it was last used
    hits: int  # finished requests that ran through it
    components: dict[str, int]  # tokens held, states for the recurrent one; a tombstone is left out
    tier: TierName = "device"  # the memory that its tree stands for


@dataclass(frozen=True, slots=True)
class TreePicture:
    """Parents before children, the root first."""

    num_nodes: int  # in the tree, without the root
    truncated: bool  # whether there are more than the picture shows
    nodes: list[NodePicture] = field(default_factory=list)
    host: "TreePicture | None" = None  # the second tier's tree, whose node ids are its own; None: there is none


def picture(tree: "Tree", max_nodes: int, *, tier: TierName = "device") -> TreePicture:
    """The root and the `max_nodes` nodes used last, ancestors included."""
    shown = [_picture_of(tree, tree.root, tier)]
    # A node was used at least as recently as anything below it, so the latest of all are found from the top.
    latest: list[tuple[int, int, Node]] = []
    _offer(latest, tree.root, max_nodes)
    while latest and len(shown) <= max_nodes:
        _, _, node = heapq.heappop(latest)
        shown.append(_picture_of(tree, node, tier))
        _offer(latest, node, max_nodes)
    return TreePicture(tree.num_nodes, truncated=len(shown) <= tree.num_nodes, nodes=shown)


def _offer(latest: list[tuple[int, int, Node]], node: Node, most: int) -> None:
    entries = [(-child.stamps[FULL], child.id, child) for child in node.children.values()]
    for entry in heapq.nsmallest(most, entries) if len(entries) > most else entries:
        heapq.heappush(latest, entry)


def _picture_of(tree: "Tree", node: Node, tier: TierName) -> NodePicture:
    sizes = {component.name: component.size(node) for component in tree.components}
    if "index" in sizes:
        sizes["index"] = sizes["full"]
    return NodePicture(
        id=node.id,
        parent=None if node.parent is None else node.parent.id,
        length=node.length,
        leases=node.locks[FULL],
        age=tree.now - node.stamps[FULL],
        hits=node.hits,
        components={name: size for name, size in sizes.items() if size},
        tier=tier,
    )
