"""Kinds of state that the tree's code does not know: a recurrent snapshot at one node, and an index in full's slots.

Both are written here against the component interface alone, beside full and sliding attention.
"""

from collections.abc import Iterator

import numpy as np
import pytest

from corymb.cache.actions import Actions
from corymb.cache.check import check_tree
from corymb.cache.component import Arrival, Component, Validator
from corymb.cache.eviction import ORDERS
from corymb.cache.key import Key
from corymb.cache.node import Node
from corymb.cache.sliding import Sliding
from corymb.cache.tree import Tree


class Recurrent(Component):
    """A state after a node's last token. An arrival's mark is its state's slot; without one it brings none."""

    name = "recurrent"
    cascade = 0

    def validator(self) -> Validator:
        return lambda node, count: node.values[self.index] is not None and count == node.length

    def mark(self, node: Node) -> int:
        return node.start

    def covered(self, node: Node, mark: int) -> Iterator[Node]:
        if node.parent is not None:
            yield node

    def split(self, upper: Node, lower: Node) -> None:
        """The state is the lower end's: the upper part has none and needs no lock."""

    def finish(self, node: Node, arrival: Arrival, actions: Actions) -> None:
        slot = arrival.marks.get(self.name)
        if slot is None:
            return
        state = np.array([slot], np.int32)
        if node.parent is None or node.values[self.index] is not None:
            actions.free(self.name, state)
        else:
            self.put(node, state)

    def size(self, node: Node) -> int:
        return int(node.values[self.index] is not None)


class Index(Component):
    """Lives in full's slots and dies with them."""

    name = "index"
    cascade = 2

    def mark(self, node: Node) -> int:
        return 0

    def covered(self, node: Node, mark: int) -> Iterator[Node]:
        yield from ()

    def split(self, upper: Node, lower: Node) -> None:
        pass


def make(window: int = 4, page_size: int = 1) -> Tree:
    return Tree(page_size, ORDERS["lru"], [Sliding(1, window, page_size), Recurrent(2), Index(3)])


def insert(tree: Tree, tokens: str, first: int, **kwargs) -> Actions:
    key = Key(np.array([*map(ord, tokens)], np.int32))
    slots = np.arange(first, first + len(tokens), dtype=np.int32)
    actions = tree.insert(Arrival(key, slots, **{"num_shared": 0} | kwargs)).actions
    check_tree(tree)
    return actions


def hit(tree: Tree, tokens: str) -> int:
    return tree.measure(Key(np.array([*map(ord, tokens)], np.int32)), len(tokens))


def freed(actions: Actions, name: str) -> list[int]:
    return np.concatenate([*actions.frees.get(name, []), np.empty(0, np.int32)]).tolist()


def evict(tree: Tree, **demand: int) -> Actions:
    actions = tree.evict(demand)
    check_tree(tree)
    return actions


def test_a_hit_ends_only_where_a_state_is() -> None:
    tree = make()
    insert(tree, "abc", 10, marks={"recurrent": 1})
    insert(tree, "abcdefgh", 20, marks={"recurrent": 2})
    assert [hit(tree, "abcdefgh"[:n]) for n in range(9)] == [0, 0, 0, 3, 3, 3, 3, 3, 8]


def test_how_far_full_alone_would_reach_shows_where_a_state_is_missing() -> None:
    tree = make()
    insert(tree, "abcdefgh", 10, marks={"recurrent": 1})
    match = tree.match(Key(np.array([*map(ord, "abcdXY")], np.int32)), 6)
    assert (match.num_tokens, match.num_full) == (0, 4)


def test_a_match_hands_out_the_state_of_its_end() -> None:
    tree = make()
    insert(tree, "abcdef", 10, marks={"recurrent": 5})
    match = tree.match(Key(np.array([*map(ord, "abcdefgh")], np.int32)), 8)
    assert tree.value(match.node_id, tree.components[2]).tolist() == [5]


def test_a_split_leaves_the_state_and_its_lock_at_the_end() -> None:
    tree = make()
    insert(tree, "abcdef", 10, marks={"recurrent": 1})
    end = max(tree.nodes)
    receipt = tree.lock(end)
    insert(tree, "abxy", 20, marks={"recurrent": 2})
    check_tree(tree)
    assert hit(tree, "abcdef") == 6
    assert hit(tree, "ab") == 0
    tree.unlock(receipt)
    check_tree(tree)


def test_a_second_state_for_the_same_end_is_freed() -> None:
    tree = make()
    insert(tree, "abc", 10, marks={"recurrent": 1})
    assert freed(insert(tree, "abc", 20, marks={"recurrent": 2}), "recurrent") == [2]
    assert freed(insert(tree, "", 30, marks={"recurrent": 3}), "recurrent") == [3]


def test_evicting_a_state_inside_leaves_the_rest() -> None:
    tree = make()
    insert(tree, "ab", 10, marks={"recurrent": 1})
    insert(tree, "abcd", 20, marks={"recurrent": 2})
    actions = evict(tree, recurrent=1)
    assert {name: freed(actions, name) for name in actions.frees} == {"recurrent": [1]}
    assert hit(tree, "abcd") == 4
    assert hit(tree, "ab") == 0


def test_evicting_sliding_inside_takes_the_state_along() -> None:
    tree = make()
    insert(tree, "ab", 10, marks={"recurrent": 1})
    insert(tree, "abcd", 20, marks={"recurrent": 2})
    actions = evict(tree, sliding=1)
    assert {name: freed(actions, name) for name in actions.frees} == {"sliding": [10, 11], "recurrent": [1]}


def test_evicting_any_state_of_a_leaf_takes_the_leaf() -> None:
    tree = make()
    insert(tree, "ab", 10, marks={"recurrent": 1})
    actions = evict(tree, recurrent=1)
    assert {name: freed(actions, name) for name in actions.frees} == {
        "full": [10, 11],
        "sliding": [10, 11],
        "recurrent": [1],
    }


def test_a_lock_holds_the_state_of_its_end_only() -> None:
    tree = make()
    insert(tree, "ab", 10, marks={"recurrent": 1})
    insert(tree, "abcd", 20, marks={"recurrent": 2})
    receipt = tree.lock(max(tree.nodes))
    assert freed(evict(tree, recurrent=9), "recurrent") == [1]
    # Decoding copies the state out, so that part can be released alone.
    receipt = tree.unlock_part(receipt, tree.components[2])
    check_tree(tree)
    actions = evict(tree, recurrent=9)
    assert {name: freed(actions, name) for name in actions.frees} == {"recurrent": [2]}
    tree.unlock(receipt)
    check_tree(tree)


@pytest.mark.parametrize("seed", range(8))
def test_random_use_with_all_four_loses_and_doubles_nothing(seed: int) -> None:
    random, tree = np.random.default_rng(seed), make(window=int(np.random.default_rng(seed).integers(1, 8)))
    next_slot = next_state = 0
    gone: dict[str, list[int]] = {"full": [], "recurrent": [], "sliding": [], "index": []}
    receipts = []

    def execute(actions: Actions) -> None:
        for name in actions.frees:
            gone[name] += freed(actions, name)

    for _ in range(300):
        match random.integers(4):
            case 0 | 1:
                tokens = "".join("ab"[i] for i in random.integers(0, 2, random.integers(1, 10)))
                marks = {"recurrent": next_state, "sliding": int(random.integers(0, 6))}
                execute(insert(tree, tokens, next_slot, marks=marks, finished=bool(random.integers(2))))
                next_slot, next_state = next_slot + len(tokens), next_state + 1
            case 2 if len(tree.nodes) > 1:
                receipts.append(tree.lock(int(random.choice(list(tree.nodes)))))
            case 3:
                demand = {name: int(random.integers(0, 8)) for name in ("full", "sliding", "recurrent")}
                execute(tree.evict(demand))
        while len(receipts) > 4:
            tree.unlock(receipts.pop(random.integers(len(receipts))))
        check_tree(tree)
    for receipt in receipts:
        tree.unlock(receipt)
    check_tree(tree)
    execute(tree.clear())
    assert sorted(gone["full"]) == list(range(next_slot))
    assert sorted(gone["recurrent"]) == list(range(next_state))
    assert gone["index"] == []
    assert [(c.evictable, c.locked) for c in tree.components] == [(0, 0)] * 4
