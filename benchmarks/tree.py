"""Times the cache with 10,000 nodes in its tree: match, insert, eviction, growth of decode rows, sliding.

python benchmarks/tree.py --repeats 500
"""

import argparse
import statistics
import time
from collections.abc import Callable, Iterator

import numpy as np
from record import record
from tqdm import tqdm

from corymb.cache.cache import Cache
from corymb.cache.config import CacheConfig
from corymb.cache.key import Key

PROMPT = 8192
ROWS = 256


def main() -> None:
    """Runs every case with full attention, then with a sliding pool beside it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=500)
    parser.add_argument("--nodes", type=int, default=10_000)
    parser.add_argument("--page-size", type=int, nargs="+", default=[1, 16])
    options = parser.parse_args()
    cases = [(size, window) for size in options.page_size for window in (0, 512)]
    for page_size, window in tqdm(cases, unit="cache"):
        bench = Bench(page_size, window, options.nodes, options.repeats)
        for parts in (1, 64, 512):
            bench.match(parts)
        bench.insert()
        bench.evict()
        bench.grow()
        bench.decode_under_pressure()
        if window:
            bench.slide()


class Bench:
    """One configuration. Every case works on a fresh cache filled with the same random tree."""

    def __init__(self, page_size: int, window: int, num_nodes: int, repeats: int) -> None:
        self.repeats = repeats
        self.num_nodes = num_nodes
        self.page_size = page_size
        self.window = window
        self.params = {"page_size": page_size, "window": window, "nodes": num_nodes}

    def fill(self, leaf: int = 64, spare: int = 300_000) -> Cache:
        """Returns a cache with `num_nodes` leaves of `leaf` tokens below a few hundred shared prefixes."""
        size = (self.num_nodes * (leaf + 16) + spare) // self.page_size * self.page_size
        config = CacheConfig(
            num_full_tokens=size,
            num_sliding_tokens=size if self.window else 0,
            sliding_window=self.window,
            page_size=self.page_size,
            num_rows=ROWS + 2,
            context_length=2 * PROMPT,
        )
        cache, random = Cache(config), np.random.default_rng(0)
        while len(cache.tree.nodes) <= self.num_nodes:
            start = np.full(16, random.integers(300), np.int32)
            add(cache, np.concatenate((start, random.integers(1000, 50_000, leaf, np.int32))))
        return cache

    def match(self, parts: int) -> None:
        """A cached prompt whose path is made of `parts` nodes."""
        cache, prompt = self.fill(), fresh(0, PROMPT)
        for stop in range(PROMPT // parts, PROMPT + 1, PROMPT // parts):
            add(cache, prompt[:stop])
        key, params = Key(prompt), self.params | {"tokens": PROMPT, "path": parts}
        limit = PROMPT - self.page_size
        assert cache.match(key, limit) == limit
        self.report("tree_match_ms", timed(self.repeats, lambda: cache.match(key, limit)), **params, call="match")

        def open_and_close() -> None:
            lease = cache.open(key, limit)
            assert lease is not None
            assert lease.num_cached == limit
            cache.close(lease, None)

        self.report("tree_match_ms", timed(self.repeats, open_and_close), **params, call="open+close")

    def insert(self) -> None:
        """A finished request of 8,192 new tokens: insert, unlock, row back."""
        for shared in (0, PROMPT // 2):
            cache, seconds = self.fill(), []
            base = fresh(0, shared)
            add(cache, base)
            for serial in range(1, self.repeats + 1):
                tokens = np.concatenate((base, fresh(serial, PROMPT)))
                lease = cache.open(Key(tokens), len(tokens) - 1)
                assert lease is not None
                slots = cache.grow(int32(lease.row), int32(len(tokens) - lease.num_cached))
                assert slots is not None
                started = time.perf_counter()
                cache.close(lease, tokens)
                seconds.append(time.perf_counter() - started)
            self.report("tree_insert_ms", seconds, **self.params, tokens=PROMPT, below=shared)

    def evict(self) -> None:
        """100,000 slots from a full pool, in leaves of 64 and of 1,024 tokens."""
        for leaf in (64, 1024):
            seconds = []
            for _ in range(max(self.repeats // 100, 3)):
                cache = self.fill(leaf, spare=0)
                started = time.perf_counter()
                cache.execute(cache.tree.evict({"full": 100_000}))
                seconds.append(time.perf_counter() - started)
            self.report("tree_evict_ms", seconds, **self.params, slots=100_000, leaf=leaf)

    def rows(self, cache: Cache, length: int) -> np.ndarray:
        """Opens 256 requests that have computed `length` tokens each."""
        leases = [cache.open(Key(fresh(1_000 + i, length)), 0) for i in range(ROWS)]
        rows = np.array([lease.row for lease in leases if lease], np.int32)
        assert cache.grow(rows, np.full(ROWS, length, np.int32)) is not None
        return rows

    def grow(self) -> None:
        """One token for each of 256 rows, from free pages."""
        cache = self.fill(spare=(self.repeats + 800 + 2 * self.page_size) * ROWS)
        rows, ones = self.rows(cache, 700), np.ones(ROWS, np.int32)
        self.report("tree_grow_ms", timed(self.repeats, lambda: cache.grow(rows, ones)), **self.params, rows=ROWS)

    def decode_under_pressure(self) -> None:
        """The same when every step must evict first: nothing is free, leaves are short."""
        for leaf in (16, 256):
            cache = self.fill(leaf, spare=(20 + 2 * self.page_size) * ROWS)
            rows, ones = self.rows(cache, 17), np.ones(ROWS, np.int32)
            while cache.full.num_free_tokens >= ROWS * self.page_size:
                assert cache.grow(rows, ones) is not None
            repeats = min(self.repeats, cache.available().full // ROWS - self.page_size)
            seconds = timed(repeats, lambda cache=cache, rows=rows, ones=ones: cache.grow(rows, ones))
            self.report("tree_grow_evicting_ms", seconds, **self.params, rows=ROWS, leaf=leaf)

    def slide(self) -> None:
        """Every row frees the page that fell behind its window, if one did."""
        cache = self.fill(spare=(2 * self.repeats + 1400) * ROWS)
        rows, ones = self.rows(cache, 700), np.ones(ROWS, np.int32)
        computed, seconds = np.full(ROWS, 700, np.int32), []
        for _ in range(self.repeats):
            assert cache.grow(rows, ones) is not None
            computed += 1
            started = time.perf_counter()
            cache.slide(rows, computed)
            seconds.append(time.perf_counter() - started)
        self.report("tree_slide_ms", seconds, **self.params, rows=ROWS)

    def report(self, metric: str, seconds: list[float], **params: str | int) -> None:
        """Records the median; minimum and 99th percentile go along, as other work disturbs both."""
        ordered = sorted(second * 1e3 for second in seconds)
        spread = {
            "min": round(ordered[0], 4),
            "p99": round(ordered[int(len(ordered) * 0.99)], 4),
            "repeats": len(ordered),
        }
        record("tree", metric, statistics.median(ordered), "ms", **params, **spread)


def timed(repeats: int, call: Callable[[], object]) -> list[float]:
    """Returns how many seconds each call took."""
    return list(_timed(repeats, call))


def _timed(repeats: int, call: Callable[[], object]) -> Iterator[float]:
    for _ in range(repeats):
        started = time.perf_counter()
        call()
        yield time.perf_counter() - started


def add(cache: Cache, tokens: np.ndarray) -> None:
    """Lets one request compute `tokens` and finish."""
    lease = cache.open(Key(tokens), len(tokens) - 1)
    assert lease is not None
    assert cache.grow(int32(lease.row), int32(len(tokens) - lease.num_cached)) is not None
    cache.close(lease, tokens)


def fresh(serial: int, count: int) -> np.ndarray:
    """Returns tokens that no other serial begins with."""
    return np.random.default_rng(serial).integers(100_000 + 1000 * serial, 101_000 + 1000 * serial, count, np.int32)


def int32(*values: int) -> np.ndarray:
    """Returns a small array."""
    return np.array(values, np.int32)


if __name__ == "__main__":
    main()
