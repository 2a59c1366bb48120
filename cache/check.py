"""Every invariant of the cache, recomputed from nothing but its parts. For tests: the cost is the size of the cache.

1  What other components keep on a node needs full there.
2  Every node has full.
3  So has its parent.
4  No lock is negative, none is more frequent than full's, and all are those of the open receipts.
5  Every node that may go is listed as a victim, no node twice.
6  No list of victims names a node that has left the tree as one that stands.
7  Counters are what counting gives.
8  Every page and state is in exactly one place.
"""

from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from corymb.cache.eviction import FULL
from corymb.cache.key import TOKEN_BYTES
from corymb.cache.node import Node
from corymb.cache.slots import Int32, Slots, pages_of
from corymb.cache.state_pool import NUM_KEPT

if TYPE_CHECKING:
    from corymb.cache.cache import Cache
    from corymb.cache.component import Component
    from corymb.cache.recurrent import Recurrent
    from corymb.cache.sliding import Sliding
    from corymb.cache.sliding_pool import SlidingPool
    from corymb.cache.state_pool import StatePool
    from corymb.cache.tier import Tier
    from corymb.cache.tree import Tree


def check_tree(tree: "Tree") -> None:
    """Shape, values, locks, counters and victim heaps of a tree."""
    nodes = list(_below(tree.root))
    assert {node.id: node for node in [tree.root, *nodes]} == tree.nodes, "a node outside the tree, or unlisted"
    assert tree.root.length == 0
    assert not any(tree.root.locks), "the root needs no lock"
    for node in nodes:
        _check_shape(node, tree.page_size)
        for component in tree.components:
            component.check(node)
    for component in tree.components:
        _check_component(tree, component, nodes)


def check_cache(cache: "Cache") -> None:
    """The tree; then that every page of each pool is in exactly one place, and that rows and leases agree."""
    check_tree(cache.tree)
    _check_rows(cache)
    if cache.host is not None:
        check_tier(cache.host.tier, locks=cache.host.locks())
    nodes = list(_below(cache.tree.root))
    size = cache.config.page_size
    in_tree = [pages_of(_value(node, FULL), size) for node in nodes]
    own = [cache.rows.own_slots(row, 0) // np.int32(size) for row in cache.leases]
    _check_conserved("full", cache.full, [*in_tree, *own])
    usage = cache.usage()["full"]
    assert usage.leased == cache.tree.full.locked + sum(map(len, own)) * size, "full: leased tokens miscounted"
    if cache.sliding is not None and cache.sliding_pool is not None:
        _check_sliding(cache, cache.sliding, cache.sliding_pool, nodes)
    if cache.recurrent is not None and cache.state_pool is not None:
        _check_states(cache, cache.recurrent, cache.state_pool, nodes)


def check_tier(tier: "Tier", *, locks: set[int]) -> None:
    """A tier that no request works in: its tree, and that the tree has all that is not free."""
    check_tree(tier.tree)
    assert set(tier.tree.receipts) == locks, "a lock outlives its transfer, or went before it"
    nodes, pools = list(_below(tier.tree.root)), tier.pools
    pages = [pages_of(_value(node, FULL), pools.page_size) for node in nodes]
    _check_conserved("full on the host", pools.full, pages)
    if tier.sliding is not None and pools.sliding is not None:
        live = [each for node, each in zip(nodes, pages, strict=True) if node.values[tier.sliding.index] is not None]
        twins = pools.sliding.twins
        owners = np.concatenate([*live, np.empty(0, np.int32)])
        assert set(np.flatnonzero(twins).tolist()) == set(owners.tolist()), "host twins that nobody counts, or missing"
        _check_conserved("sliding on the host", pools.sliding.slots, [twins[owners]])
    if tier.recurrent is not None and pools.states is not None:
        index = tier.recurrent.index
        states = [_value(node, index) for node in nodes if node.values[index] is not None]
        _check_conserved("recurrent on the host", pools.states, states)


def _check_sliding(cache: "Cache", sliding: "Sliding", pool: "SlidingPool", nodes: list[Node]) -> None:
    size = cache.config.page_size
    own = [cache.rows.own_slots(row, 0) // np.int32(size) for row in cache.leases]
    index, twins = sliding.index, pool.twins
    in_tree = [pages_of(_value(node, index), size) for node in nodes if node.values[index] is not None]
    live = [pages[_positions(cache, row) >= cache.rows.slid[row]] for row, pages in zip(cache.leases, own, strict=True)]
    owners = np.concatenate([*in_tree, *live, np.empty(0, np.int32)])
    assert set(np.flatnonzero(twins).tolist()) == set(owners.tolist()), "twins live that nobody counts, or the reverse"
    _check_conserved("sliding", pool.slots, [twins[owners]])
    usage = cache.usage()["sliding"]
    assert usage.leased == sliding.locked + sum(map(len, live)) * size, "sliding: leased tokens miscounted"


def _check_states(cache: "Cache", recurrent: "Recurrent", pool: "StatePool", nodes: list[Node]) -> None:
    rows, index = pool.rows, recurrent.index
    in_tree = [_value(node, index) for node in nodes if node.values[index] is not None]
    own = [int(slot) for slot in rows.working if slot] + [slot for kept in pool.kept.values() for slot in kept.values()]
    _check_conserved("recurrent", pool.slots, [*in_tree, np.array(own, np.int32)])
    assert cache.usage()["recurrent"].leased == recurrent.locked + len(own), "recurrent: leased states miscounted"
    closed = np.ones(cache.config.num_rows, np.bool_)
    closed[[*cache.leases]] = False
    assert not rows.working[closed].any(), "a closed row works in a state"
    assert set(pool.kept) <= set(cache.leases), "a closed row keeps a snapshot"
    for row, lease in cache.leases.items():
        marked = lease.receipt.marks[index] is not None
        assert marked == bool(rows.is_new[row]), "a state is pinned after its copy, or not before it"
        kept = pool.kept.get(row, {})
        assert len(kept) <= NUM_KEPT
        assert all(0 < stop <= rows.stops[row] or stop == rows.landmarks[row] for stop in kept), "a snapshot of nothing"
        assert not any(stop % cache.config.page_size for stop in kept), "a snapshot inside a page"
        assert rows.slack[row] >= 0, "more drafts came back than were sent"
        assert not rows.landmarks[row] or rows.landmarks[row] in kept, "a snapshot that nobody keeps is on the way"
        if rows.is_new[row] and rows.source[row]:
            start = cache.tree.value(lease.receipt.node_id, recurrent)
            assert start is not None, "the state that a row starts from is gone"
            assert start[0] == rows.source[row], "a row starts from another node's state"


def _below(node: Node) -> Iterator[Node]:
    stack = list(node.children.values())
    while stack:
        node = stack.pop()
        yield node
        stack += node.children.values()


def _value(node: Node, index: int) -> Int32:
    value = node.values[index]
    assert value is not None
    return value


def _check_shape(node: Node, page_size: int) -> None:
    parent = node.parent
    assert parent is not None
    assert parent.children[node.edge] is node, "filed under another name"
    first = node.tokens[: page_size * TOKEN_BYTES]
    name = node.edge[1] if isinstance(node.edge, tuple) else node.edge
    assert isinstance(node.edge, tuple) == (parent.parent is None), "namespaces part below the root and nowhere else"
    assert name == first, "named after other tokens"
    assert node.start == parent.stop
    assert node.length > 0
    assert node.length % page_size == 0
    assert node.length * TOKEN_BYTES == len(node.tokens)


def _check_component(tree: "Tree", component: "Component", nodes: list[Node]) -> None:
    index, name = component.index, component.name
    locks: Counter[int] = Counter()
    for receipt in tree.receipts.values():
        mark = receipt.marks[index]
        if mark is not None:
            locks.update(node.id for node in component.covered(tree.nodes[receipt.node_id], mark))
    for node in nodes:
        assert node.locks[index] == locks[node.id], f"{name}: locks and open receipts disagree at node {node.id}"
        assert node.queued[index] or not component.is_victim(node), f"{name}: a victim is not listed"
    queued = component.victims.nodes()
    assert len({node.id for node in queued}) == len(queued), f"{name}: listed twice"
    assert all(node.queued[index] for node in queued)
    assert sum(node.queued[index] > 0 for node in nodes) == len(queued), f"{name}: a node that has gone is listed"
    evictable = sum(component.size(node) for node in nodes if not node.locks[index])
    locked = sum(component.size(node) for node in nodes if node.locks[index])
    assert (component.evictable, component.locked) == (evictable, locked), f"{name}: counters are off"
    assert component.num_holding == sum(node.values[index] is not None for node in nodes), f"{name}: nodes miscounted"


def _check_rows(cache: "Cache") -> None:
    rows, size = cache.rows, cache.config.page_size
    taken = [*rows.free, *cache.leases]
    assert sorted(taken) == list(range(1, cache.config.num_rows)), "a row is lost, or has two owners"
    assert len(cache.tree.receipts) == len(cache.leases), "a lock outlives its lease"
    for row, lease in cache.leases.items():
        shared = int(rows.shared[row])
        assert not lease.closed
        assert shared % size == 0
        assert rows.slid[row] % size == 0
        assert shared <= rows.reserved[row] <= cache.config.context_length
        assert cache.tree.nodes[lease.receipt.node_id].stop == shared, "the lock ends elsewhere than the shared part"
        path = cache.tree.slots(lease.receipt.node_id, 0)
        assert np.array_equal(path, rows.table[row, :shared]), "the row and the tree name different slots"
        assert cache.sliding is None or bool(cache.pins_sliding[row]) == (
            shared > 0 and lease.receipt.marks[cache.sliding.index] is not None
        )


def _positions(cache: "Cache", row: int) -> Int32:
    return np.arange(cache.rows.shared[row], cache.rows.reserved[row], cache.config.page_size, dtype=np.int32)


def _check_conserved(name: str, pool: Slots, owned: list[Int32]) -> None:
    pages = np.concatenate([*owned, pool.free_pages()])
    pages.sort()
    assert np.array_equal(pages, np.arange(1, pool.num_pages + 1)), f"{name}: a page is lost, or has two owners"
