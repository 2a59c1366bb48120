"""What the scheduler drops is gone at once: its process keeps Python's collector away from what lives long."""

import gc
import weakref

import pytest

from corymb.serve.garbage import settle

from .bench import Bench, generate


@pytest.fixture
def collector():
    gc.collect()
    gc.disable()
    yield
    gc.enable()
    gc.unfreeze()


@pytest.mark.usefixtures("collector")
@pytest.mark.parametrize("depth", [0, 1])
def test_no_request_node_or_lease_needs_the_collector(depth):
    sizes = {"num_full_tokens": 300, "sliding_window": 8, "num_sliding_tokens": 200, "num_states": 9}
    bench = Bench(cache=sizes | {"state_interval": 16}, overlap_depth=depth, test_retract_interval=5)
    for i in range(30):
        bench.send(generate(f"r{i}", b"some beginning " * (i % 5) + bytes([65 + i]) * 9, max_new=20))
        bench.step(3)
    bench.finish()
    assert bench.cache.flush()
    assert gc.collect() == 0, "something was dropped in a cycle"


@pytest.mark.usefixtures("collector")
def test_settled_memory_comes_back_when_it_is_dropped():
    class Something:
        pass

    kept = Something()
    reference = weakref.ref(kept)
    settle()
    assert gc.get_freeze_count() > 0
    del kept
    assert reference() is None
