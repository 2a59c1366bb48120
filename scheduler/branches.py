"""The dfs-weight order: walks the part of the tree that the queue touches."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from corymb.cache.key import Key
from corymb.scheduler.plan import Int32


@dataclass(slots=True)
class _Branch:
    depth: int  # tokens from the root to here
    own: list[int] = field(default_factory=list)  # requests that end here
    below: list["_Branch"] = field(default_factory=list)
    weight: int = 0  # requests here and below
    first: int = 1 << 60  # the earliest of them

    def add(self, request: int) -> None:
        self.own.append(request)
        self._count(1, request)

    def hang(self, branch: "_Branch") -> None:
        self.below.append(branch)
        self._count(branch.weight, branch.first)

    def _count(self, weight: int, first: int) -> None:
        self.weight += weight
        self.first = min(self.first, first)


def dfs_weight(keys: Sequence[Key], matched: Sequence[int]) -> list[int]:
    """Indices of the queue, subtrees with more waiting requests first; a request comes after those that wait below it,
    so a branch is used up before the walk leaves it.

    Only matched[i] tokens of keys[i] lie in the tree. Branch points are found from the keys themselves, so no node is
    needed: two requests part where their matched tokens do.
    """
    groups: dict[tuple[str | None, str | None], list[int]] = {}
    for i, key in enumerate(keys):
        groups.setdefault(key.namespace, []).append(i)
    root = _Branch(0)
    for members in groups.values():
        root.hang(_grow({i: keys[i].token_ids[: matched[i]] for i in members}))
    return list(_walk(root))


def _grow(paths: dict[int, Int32]) -> _Branch:
    # In sorted order, requests below one branch are neighbours, and neighbours part where the branch point is.
    order = sorted(paths, key=lambda i: (paths[i].tobytes(), i))
    open_branches = [_Branch(0)]
    before = np.empty(0, np.int32)
    for i in order:
        _close(open_branches, _common(before, paths[i]))
        if len(paths[i]) > open_branches[-1].depth:
            open_branches.append(_Branch(len(paths[i])))
        open_branches[-1].add(i)
        before = paths[i]
    _close(open_branches, 0)
    return open_branches[0]


def _close(open_branches: list[_Branch], depth: int) -> None:
    """Hangs what is deeper than `depth` below its parents; afterwards the last open branch is not deeper."""
    while open_branches[-1].depth > depth:
        branch = open_branches.pop()
        if open_branches[-1].depth < depth:
            open_branches.append(_Branch(depth))
        open_branches[-1].hang(branch)


def _common(ours: Int32, theirs: Int32) -> int:
    length = min(len(ours), len(theirs))
    differs = np.flatnonzero(ours[:length] != theirs[:length])
    return int(differs[0]) if len(differs) else length


def _walk(root: _Branch) -> Iterator[int]:
    stack: list[_Branch | int] = [root]
    while stack:
        item = stack.pop()
        if isinstance(item, int):
            yield item
            continue
        # A stack gives back its end first: the heaviest branch, among equals the one whose first request came first.
        stack += sorted(item.own, reverse=True)
        below = sorted(item.below, key=lambda branch: (branch.weight, -branch.first))
        stack += below
