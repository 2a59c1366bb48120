"""The tree by itself, full attention only: slots are just numbers here."""

import numpy as np
import pytest

from corymb.cache.actions import Actions
from corymb.cache.check import check_tree
from corymb.cache.component import Arrival
from corymb.cache.eviction import ORDERS
from corymb.cache.key import Key
from corymb.cache.tree import Inserted, Tree


def int32(*values: int) -> np.ndarray:
    return np.array(values, np.int32)


def make(page_size: int = 1, order: str = "lru") -> Tree:
    return Tree(page_size, ORDERS[order])


def insert(tree: Tree, tokens: str, first_slot: int, *, salt: str | None = None, **kwargs) -> Inserted:
    """Inserts letters as tokens, on slots first_slot, first_slot + 1, …"""
    key = Key(int32(*map(ord, tokens)), cache_salt=salt)
    count = len(tokens) // tree.page_size * tree.page_size
    slots = np.arange(first_slot, first_slot + count, dtype=np.int32)
    inserted = tree.insert(Arrival(key, slots, **{"num_shared": 0} | kwargs))
    check_tree(tree)
    return inserted


def hit(tree: Tree, tokens: str, *, salt: str | None = None) -> int:
    return tree.measure(Key(int32(*map(ord, tokens)), cache_salt=salt), len(tokens))


def freed(actions: Actions) -> list[int]:
    return np.concatenate([*actions.frees.get("full", []), int32()]).tolist()


def evict(tree: Tree, count: int) -> list[int]:
    slots = freed(tree.evict({"full": count}))
    check_tree(tree)
    return slots


def test_branches_share_their_prefix() -> None:
    tree = make()
    assert freed(insert(tree, "abcd", 10).actions) == []
    assert freed(insert(tree, "abxy", 20).actions) == [20, 21]
    match = tree.match(Key(int32(*map(ord, "abxyz"))), 5)
    assert match.num_tokens == 4
    assert match.slots.tolist() == [10, 11, 22, 23]
    assert tree.slots(match.node_id, 2).tolist() == [22, 23]
    assert hit(tree, "abcd") == 4


def test_match_inside_an_edge_splits_there_and_measure_does_not() -> None:
    tree = make()
    insert(tree, "abcd", 10)
    before = len(tree.nodes)
    assert hit(tree, "abc") == 3
    assert len(tree.nodes) == before
    assert tree.match(Key(int32(*map(ord, "abc"))), 3).num_tokens == 3
    assert len(tree.nodes) == before + 1
    check_tree(tree)


def test_a_node_keeps_its_id_and_end_when_split() -> None:
    tree = make()
    end = insert(tree, "abcd", 10).node_id
    tree.match(Key(int32(*map(ord, "ab"))), 2)
    assert tree.slots(end, 0).tolist() == [10, 11, 12, 13]
    assert tree.nodes[end].start == 2


def test_pages_are_never_parted() -> None:
    tree = make(page_size=4)
    insert(tree, "abcdefghij", 40)
    assert hit(tree, "abcdefghij") == 8
    assert hit(tree, "abcdefgX") == 4
    assert hit(tree, "abcX") == 0
    insert(tree, "abcdXXXX", 80)
    assert hit(tree, "abcdXXXX") == 8
    assert hit(tree, "abcdefgh") == 8


def test_namespaces_never_meet() -> None:
    tree = make()
    insert(tree, "abcd", 10, salt="x")
    assert hit(tree, "abcd") == 0
    assert hit(tree, "abcd", salt="y") == 0
    assert hit(tree, "abcd", salt="x") == 4
    key = int32(*map(ord, "abcd"))
    assert tree.measure(Key(key, extra_key="x"), 4) == 0  # a salt does not imitate a server's own namespace
    evict(tree, 4)
    assert tree.root.children == {}  # nothing stays behind of a namespace that nobody uses


def test_shared_slots_are_not_freed_as_duplicates() -> None:
    tree = make()
    insert(tree, "abcd", 10)
    arrival = Arrival(Key(int32(*map(ord, "abcdef"))), int32(10, 11, 12, 13, 50, 51), num_shared=4)
    assert freed(tree.insert(arrival).actions) == []
    assert hit(tree, "abcdef") == 6


def test_slots_of_a_node_are_its_own_copy() -> None:
    tree = make()
    slots = int32(1, 2, 3)
    node_id = tree.insert(Arrival(Key(int32(7, 8, 9)), slots, num_shared=0)).node_id
    slots[:] = 0
    assert tree.slots(node_id, 0).tolist() == [1, 2, 3]


def test_a_receipt_is_good_once() -> None:
    tree = make()
    receipt = tree.lock(insert(tree, "ab", 10).node_id)
    assert (tree.full.evictable, tree.full.locked) == (0, 2)
    tree.unlock(receipt)
    assert (tree.full.evictable, tree.full.locked) == (2, 0)
    with pytest.raises(AssertionError, match="not the receipt of an open lock"):
        tree.unlock(receipt)


def test_a_lock_reaches_to_the_root_and_survives_splits() -> None:
    tree = make()
    receipt = tree.lock(insert(tree, "abcd", 10).node_id)
    insert(tree, "abxy", 20)
    check_tree(tree)
    assert (tree.full.evictable, tree.full.locked) == (2, 4)
    assert evict(tree, 100) == [22, 23]
    tree.unlock(receipt)
    check_tree(tree)
    assert sorted(evict(tree, 100)) == [10, 11, 12, 13]


def test_leaves_go_before_their_parents_and_whole() -> None:
    tree = make()
    insert(tree, "ab", 10)
    insert(tree, "abcd", 20)
    assert evict(tree, 1) == [22, 23]
    assert evict(tree, 1) == [10, 11]


def test_lru_spares_what_was_matched_last() -> None:
    tree = make()
    insert(tree, "aa", 10)
    insert(tree, "bb", 20)
    tree.match(Key(int32(*map(ord, "aa"))), 2)
    assert evict(tree, 1) == [20, 21]


def test_measuring_does_not_count_as_use() -> None:
    tree = make()
    insert(tree, "aa", 10)
    insert(tree, "bb", 20)
    assert hit(tree, "aa") == 2
    assert evict(tree, 1) == [10, 11]


def test_lfu_counts_finished_sequences_only() -> None:
    tree = make(order="lfu")
    insert(tree, "aa", 10)
    insert(tree, "aa", 20)
    for first in (30, 40, 50):
        insert(tree, "bb", first, finished=False)
    assert evict(tree, 1) == [30, 31]


def test_slru_protects_what_was_used_twice() -> None:
    tree = make(order="slru")
    for first, tokens in ((10, "aa"), (20, "aa"), (30, "bb")):
        insert(tree, tokens, first)
    for _ in range(3):
        tree.match(Key(int32(*map(ord, "bb"))), 2)
    assert evict(tree, 1) == [30, 31]


def test_priority_is_the_highest_that_used_a_node() -> None:
    tree = make(order="priority")
    insert(tree, "aa", 10, priority=1)
    insert(tree, "bb", 20, priority=0)
    insert(tree, "bb", 30, priority=5)
    insert(tree, "cc", 40, priority=2)
    assert evict(tree, 1) == [10, 11]
    assert evict(tree, 1) == [40, 41]
    assert evict(tree, 1) == [20, 21]


def test_clearing_frees_everything_and_refuses_open_locks() -> None:
    tree = make()
    insert(tree, "abcd", 10)
    receipt = tree.lock(insert(tree, "abxy", 20).node_id)
    with pytest.raises(AssertionError, match="open locks"):
        tree.clear()
    tree.unlock(receipt)
    assert sorted(freed(tree.clear())) == [10, 11, 12, 13, 22, 23]
    assert list(tree.nodes.values()) == [tree.root]


def test_an_eviction_looks_at_few_nodes_of_many() -> None:
    tree = make()
    for i in range(500):
        insert_fast = Arrival(Key(int32(i, i)), int32(2 * i, 2 * i + 1), num_shared=0)
        tree.insert(insert_fast)
    looked, rank = [], tree.full.victims._rank
    tree.full.victims._rank = lambda node: looked.append(node.id) or rank(node)
    for _ in range(100):
        tree.evict({"full": 2})
    assert len(looked) < 300
    check_tree(tree)
