"""A tree with all four kinds of state: what each does beside the others."""

import numpy as np
import pytest

from corymb.cache.actions import Actions
from corymb.cache.check import check_tree
from corymb.cache.component import Arrival
from corymb.cache.eviction import ORDERS
from corymb.cache.index import Index
from corymb.cache.key import Key
from corymb.cache.recurrent import Recurrent
from corymb.cache.sliding import Sliding
from corymb.cache.tree import Tree


def make(window: int = 4, page_size: int = 1, max_per_path: int | None = None) -> Tree:
    auxiliary = [Sliding(1, window, page_size), Recurrent(2, max_per_path), Index(3)]
    return Tree(page_size, ORDERS["lru"], auxiliary)


def insert(tree: Tree, tokens: str, first: int, *, state: int | None = None, **kwargs) -> Actions:
    key = Key(np.array([*map(ord, tokens)], np.int32))
    slots = np.arange(first, first + len(tokens), dtype=np.int32)
    states = {} if state is None else {len(tokens): state}
    actions = tree.insert(Arrival(key, slots, **{"num_shared": 0, "states": states} | kwargs)).actions
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
    insert(tree, "abc", 10, state=1)
    insert(tree, "abcdefgh", 20, state=2)
    assert [hit(tree, "abcdefgh"[:n]) for n in range(9)] == [0, 0, 0, 3, 3, 3, 3, 3, 8]


def test_how_far_full_alone_would_reach_shows_where_a_state_is_missing() -> None:
    tree = make()
    insert(tree, "abcdefgh", 10, state=1)
    match = tree.match(Key(np.array([*map(ord, "abcdXY")], np.int32)), 6)
    assert (match.num_tokens, match.num_full) == (0, 4)


def test_a_match_hands_out_the_state_of_its_end() -> None:
    tree = make()
    insert(tree, "abcdef", 10, state=5)
    match = tree.match(Key(np.array([*map(ord, "abcdefgh")], np.int32)), 8)
    assert tree.value(match.node_id, tree.components[2]).tolist() == [5]


def test_a_split_leaves_the_state_and_its_lock_at_the_end() -> None:
    tree = make()
    insert(tree, "abcdef", 10, state=1)
    end = max(tree.nodes)
    receipt = tree.lock(end)
    insert(tree, "abxy", 20, state=2)
    check_tree(tree)
    assert hit(tree, "abcdef") == 6
    assert hit(tree, "ab") == 0
    tree.unlock(receipt)
    check_tree(tree)


def test_a_second_state_for_the_same_end_is_freed() -> None:
    tree = make()
    insert(tree, "abc", 10, state=1)
    assert freed(insert(tree, "abc", 20, state=2), "recurrent") == [2]


def test_states_inside_what_arrives_cut_it_there() -> None:
    tree = make()
    insert(tree, "abcdefgh", 10, states={2: 1, 5: 2, 8: 3})
    assert [hit(tree, "abcdefgh"[:n]) for n in range(9)] == [0, 0, 2, 2, 2, 5, 5, 5, 8]


def test_states_inside_what_stands_cut_it_there_and_fill_it() -> None:
    tree = make()
    insert(tree, "abcdefgh", 10, states={5: 1})
    actions = insert(tree, "abcdefxy", 20, states={3: 2, 5: 3, 6: 4, 8: 5})
    assert freed(actions, "recurrent") == [3]
    assert [hit(tree, "abcdefgh"[:n]) for n in range(9)] == [0, 0, 0, 3, 3, 5, 6, 6, 6]
    assert hit(tree, "abcdefxy") == 8


def test_a_path_with_too_many_states_loses_those_near_the_root() -> None:
    tree = make(max_per_path=2)
    insert(tree, "abcd", 10, states={2: 1, 4: 2})
    actions = insert(tree, "abcdefgh", 20, states={6: 3, 8: 4})
    assert freed(actions, "recurrent") == [1, 2]
    assert [hit(tree, "abcdefgh"[:n]) for n in (2, 4, 6, 8)] == [0, 0, 6, 8]


def test_a_path_with_too_many_states_keeps_those_at_forks_and_under_locks() -> None:
    tree = make(max_per_path=1)
    insert(tree, "abxy", 20, state=2)
    insert(tree, "abcd", 30, state=3)
    locked = tree.lock(max(tree.nodes))
    insert(tree, "ab", 10, state=1)
    insert(tree, "abcdefgh", 40, states={6: 4, 8: 5})
    assert [hit(tree, "abcdefgh"[:n]) for n in (2, 4, 6, 8)] == [2, 4, 4, 8]
    tree.unlock(locked)
    check_tree(tree)


def test_of_two_states_the_one_used_before_goes_first() -> None:
    tree = make()
    insert(tree, "abcd", 10, states={2: 1, 4: 2})
    tree.match(Key(np.array([*map(ord, "abxx")], np.int32)), 4)
    insert(tree, "zz", 20, state=3)
    actions = evict(tree, recurrent=1)
    # 2 is at a leaf, which goes with it.
    assert freed(actions, "recurrent") == [2]
    assert [hit(tree, tokens) for tokens in ("abcd", "zz")] == [2, 2]


def test_a_state_inside_a_path_is_as_recent_as_the_path() -> None:
    tree = make()
    insert(tree, "abcdefgh", 10, state=1)
    insert(tree, "zz", 20, state=2)
    insert(tree, "abcdefghij", 30, states={4: 3, 6: 4, 10: 5})
    assert freed(evict(tree, recurrent=1), "recurrent") == [1]
    assert freed(evict(tree, recurrent=1), "recurrent") == [2]
    assert [hit(tree, "abcdefghij"[:n]) for n in (4, 6, 10)] == [4, 6, 10]


def test_evicting_a_state_inside_leaves_the_rest() -> None:
    tree = make()
    insert(tree, "ab", 10, state=1)
    insert(tree, "abcd", 20, state=2)
    actions = evict(tree, recurrent=1)
    assert {name: freed(actions, name) for name in actions.frees} == {"recurrent": [1]}
    assert hit(tree, "abcd") == 4
    assert hit(tree, "ab") == 0


def test_evicting_sliding_inside_takes_the_state_along() -> None:
    tree = make()
    insert(tree, "ab", 10, state=1)
    insert(tree, "abcd", 20, state=2)
    actions = evict(tree, sliding=1)
    assert {name: freed(actions, name) for name in actions.frees} == {"sliding": [10, 11], "recurrent": [1]}


def test_evicting_any_state_of_a_leaf_takes_the_leaf() -> None:
    tree = make()
    insert(tree, "ab", 10, state=1)
    actions = evict(tree, recurrent=1)
    assert {name: freed(actions, name) for name in actions.frees} == {
        "full": [10, 11],
        "sliding": [10, 11],
        "recurrent": [1],
    }


def test_a_lock_holds_the_state_of_its_end_only() -> None:
    tree = make()
    insert(tree, "ab", 10, state=1)
    insert(tree, "abcd", 20, state=2)
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
    random, tree = (
        np.random.default_rng(seed),
        make(int(np.random.default_rng(seed).integers(1, 8)), max_per_path=seed % 4 or None),
    )
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
                stops = np.flatnonzero(random.integers(0, 2, len(tokens))) + 1
                options = {
                    "states": dict(zip(stops.tolist(), range(next_state, next_state + len(stops)), strict=True)),
                    "marks": {"sliding": int(random.integers(0, 6))},
                    "finished": bool(random.integers(2)),
                }
                execute(insert(tree, tokens, next_slot, **options))
                next_slot, next_state = next_slot + len(tokens), next_state + len(stops)
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
