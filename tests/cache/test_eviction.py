"""What each order of eviction says, against a plain history of who was used when: random uses, then all goes, one by
one."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from corymb.cache.cache import Cache
from corymb.cache.check import check_tree
from corymb.cache.component import Arrival
from corymb.cache.config import CacheConfig
from corymb.cache.eviction import order_of
from corymb.cache.key import Key
from corymb.cache.tree import Tree

PROMPTS = 5
Use = tuple[int, int, bool]  # which prompt, with which priority, and whether its request finishes or only looks it up
uses = st.lists(st.tuples(st.integers(0, PROMPTS - 1), st.integers(-2, 2), st.booleans()), min_size=1, max_size=30)


def arrive(tree: Tree, tokens: list[int], **options) -> None:
    ids = np.array(tokens, np.int32)
    tree.insert(Arrival(Key(ids), np.arange(1, len(ids) + 1, dtype=np.int32), num_shared=0, **options))


def look_up(tree: Tree, tokens: list[int]) -> int:
    return tree.match(Key(np.array(tokens, np.int32)), len(tokens)).num_tokens


def replay(order: str, history: list[Use]) -> list[int]:
    """Evicts prompts of one token each after the history; returns them as they went."""
    tree = Tree(1, order_of(order, 0))
    for prompt, priority, finishes in history:
        if finishes:
            arrive(tree, [prompt], priority=priority)
        else:
            look_up(tree, [prompt])
    gone = []
    while left := {node.tokens for node in tree.nodes.values() if node.parent}:
        tree.evict({"full": 1})
        check_tree(tree)
        gone += left - {node.tokens for node in tree.nodes.values() if node.parent}
    return [int(np.frombuffer(tokens, np.int32)[0]) for tokens in gone]


def last_use(history: list[Use], prompt: int) -> int:
    """Looking up counts once the prompt is there."""
    return max(at for at, use in enumerate(history) if use[0] == prompt)


def num_finished(history: list[Use], prompt: int) -> int:
    return sum(finishes for each, _, finishes in history if each == prompt)


KEYS = {
    "lru": lambda history, prompt: 0,
    "lfu": num_finished,
    "slru": lambda history, prompt: num_finished(history, prompt) >= 2,
    "priority": lambda history, prompt: max(p for each, p, finishes in history if each == prompt and finishes),
}


@pytest.mark.parametrize("order", KEYS)
@given(history=uses)
def test_an_order_follows_the_history(order, history):
    known = {prompt for prompt, _, finishes in history if finishes}
    expected = sorted(known, key=lambda prompt: (KEYS[order](history, prompt), last_use(history, prompt)))
    assert replay(order, history) == expected


@given(
    turns=st.lists(st.tuples(st.integers(0, 3), st.integers(1, 9)), min_size=1, max_size=20),
    slack=st.integers(0, 20),
)
def test_tlru_takes_ends_that_are_not_missed_before_whole_conversations(turns, slack):
    """Conversations grow by turns; each turn is a node. What goes next is an end behind the last `slack` tokens if
    there is one, of the conversation that rested longest; else the end of the one that rested longest."""
    tree, ends, rests = Tree(1, order_of("tlru", slack)), {}, {}
    for at, (who, length) in enumerate(turns):
        stops = ends.setdefault(who, [0])
        stops.append(stops[-1] + length)
        rests[who] = at
        arrive(tree, [who] * stops[-1])
    longest = {who: stops[-1] for who, stops in ends.items()}
    while any(len(stops) > 1 for stops in ends.values()):
        standing = [who for who, stops in ends.items() if len(stops) > 1]
        victim = min(standing, key=lambda who: (ends[who][-2] < longest[who] - slack, rests[who]))
        ends[victim].pop()
        tree.evict({"full": 1})
        check_tree(tree)
        found = {who: tree.measure(Key(np.full(100, who, np.int32)), 100) for who in ends}
        assert found == {who: stops[-1] for who, stops in ends.items()}


def test_tlru_judges_a_part_of_a_conversation_by_where_it_begins_now():
    tree = Tree(1, order_of("tlru", 4))
    arrive(tree, [1] * 10)
    arrive(tree, [2] * 3)
    assert look_up(tree, [1] * 7) == 7  # its last three tokens are a node of their own now, and may be missed
    assert look_up(tree, [2] * 3) == 3
    tree.evict({"full": 1})
    check_tree(tree)
    assert look_up(tree, [1] * 10) == 7


def test_a_negative_slack_is_refused():
    with pytest.raises(ValueError, match="eviction_slack is -1: it must be at least 0"):
        Cache(CacheConfig(num_full_tokens=8, eviction="tlru", eviction_slack=-1))
