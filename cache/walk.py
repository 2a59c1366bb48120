"""From the root down along a key, changing nothing."""

from collections.abc import Sequence
from dataclasses import dataclass

from corymb.cache.component import Component
from corymb.cache.key import TOKEN_BYTES, Edge, Namespace, common_tokens
from corymb.cache.node import Node


@dataclass(frozen=True, slots=True)
class Walk:
    """Where a walk came to. A hit may end inside the last node of `path`, which must then be split there."""

    path: list[Node]  # from below the root to the node in which the best hit ends
    num_tokens: int  # best hit that every component accepts
    reaches: list[int]  # hits that each component alone would give; full's comes first and is the longest


def edge_at(namespace: Namespace, tokens: bytes, at: int, page_bytes: int) -> Edge:
    """Returns a child's name: its first page, below the root together with the namespace."""
    page = tokens[at : at + page_bytes]
    return page if at else (namespace, page)


def walk(root: Node, namespace: Namespace, tokens: bytes, page_size: int, components: Sequence[Component]) -> Walk:
    """Follows `tokens` as far as the tree has them. Every validator sees every node: some keep running lengths."""
    validators = [
        (component.index, validator) for component in components if (validator := component.validator()) is not None
    ]
    reaches = [-1] * len(components)
    page_bytes = page_size * TOKEN_BYTES
    path: list[Node] = []
    at = num_best = best = 0
    node = root
    while at < len(tokens):
        page = tokens[at : at + page_bytes]
        child = node.children.get(page if at else (namespace, page))
        if child is None:
            break
        count = common_tokens(child.tokens, tokens, at, page_size)
        path.append(child)
        at += count * TOKEN_BYTES
        valid = True
        for index, validator in validators:
            if validator(child, count):
                reaches[index] = at
            else:
                valid = False
        if valid:
            best, num_best = at // TOKEN_BYTES, len(path)
        if count < child.length:
            break
        node = child
    for index, _ in validators:
        reaches[index] = max(reaches[index], 0)
    return Walk(path[:num_best], best, [(at if reach < 0 else reach) // TOKEN_BYTES for reach in reaches])
