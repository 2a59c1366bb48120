"""What operators see of the tree: a bounded picture, and counts by component."""

import numpy as np

from corymb.cache.cache import Cache
from corymb.cache.config import CacheConfig
from corymb.cache.key import Key


def int32(*values: int) -> np.ndarray:
    return np.array(values, np.int32)


def make(**config) -> Cache:
    sizes = {"num_full_tokens": 400, "num_sliding_tokens": 400, "sliding_window": 4, "num_states": 20, "num_rows": 9}
    return Cache(CacheConfig(**sizes | {"context_length": 64, "state_interval": 100} | config))


def run(cache: Cache, text: str) -> dict[str, int]:
    """One request computes and ends; returns what each component alone would have given it."""
    tokens = np.array([*map(ord, text)], np.int32)
    lease = cache.open(Key(tokens), len(tokens) - 1)
    assert lease is not None
    reaches, row = lease.reaches, int32(lease.row)
    assert cache.grow(row, int32(len(tokens) - lease.num_cached)) is not None
    cache.take_state_writes(row, int32(len(tokens)))
    cache.close(lease, tokens)
    cache.check()
    return reaches


def test_every_node_is_shown_below_its_parent() -> None:
    cache = make()
    for text in ("abcdefgh", "abcdxy", "qr"):
        run(cache, text)
    shown = cache.picture(100)
    assert not shown.truncated
    assert shown.num_nodes == len(shown.nodes) - 1 == cache.tree.num_nodes
    parents = {None}
    for node in shown.nodes:
        assert node.parent in parents
        parents.add(node.id)
    assert sum(node.length for node in shown.nodes) == 8 + 2 + 2


def test_a_picture_is_bounded_and_shows_what_was_used_last() -> None:
    cache = make()
    for text in ("aaaa", "bbbb", "cccc", "dddd"):
        run(cache, text)
    run(cache, "bbbbx")
    shown = cache.picture(2)
    assert shown.truncated
    assert [node.length for node in shown.nodes[1:]] == [4, 1]
    assert [node.age for node in shown.nodes] == [0, 0, 0]


def test_tombstones_are_left_out_and_counted() -> None:
    cache = make()
    run(cache, "abcdefgh")
    run(cache, "abcdefghijkl")
    cache.execute(cache.tree.evict({"recurrent": 1}))
    first = cache.picture(10).nodes[1]
    assert "recurrent" not in first.components
    assert first.components["full"] == first.components["sliding"] == first.length
    # Sliding cuts the second request's part into a window and the rest, so two of the nodes have no state.
    held = {name: (each.evictable, each.num_tombstones) for name, each in cache.components().items()}
    assert held == {"full": (12, 0), "sliding": (12, 0), "recurrent": (1, cache.tree.num_nodes - 1)}


def test_leases_protect_what_they_read() -> None:
    cache = make()
    run(cache, "abcdefgh")
    lease = cache.open(Key(np.array([*map(ord, "abcdefghij")], np.int32)), 9)
    assert lease is not None
    assert {name: each.protected for name, each in cache.components().items()} == {
        "full": 8,
        "sliding": 4,
        "recurrent": 1,
    }
    assert cache.picture(10).nodes[-1].leases == 1
    cache.close(lease, None)
    assert {each.protected for each in cache.components().values()} == {0}


def test_an_index_is_where_full_is() -> None:
    cache = make(num_sliding_tokens=0, sliding_window=0, num_states=0, has_index=True)
    run(cache, "abcd")
    assert cache.components()["index"] == cache.components()["full"]
    assert cache.picture(10).nodes[1].components == {"full": 4, "index": 4}


def test_each_component_says_how_far_it_alone_would_have_reached() -> None:
    cache = make()
    run(cache, "abcdefgh")
    assert run(cache, "abcdefxyz") == {"full": 6, "sliding": 6, "recurrent": 0}
    cache.execute(cache.tree.evict({"sliding": 100}))
    assert run(cache, "nothing of it") == {"full": 0, "sliding": 0, "recurrent": 0}
    run(cache, "0123456789")
    # The state is at the leaf, which goes with it; the part before the last window stays.
    cache.execute(cache.tree.evict({"recurrent": 100}))
    assert run(cache, "0123456789") == {"full": 6, "sliding": 6, "recurrent": 0}
