"""Times the cache with 100,000 nodes in its tree, for every combination of components: match, insert, finishing
requests, eviction, growth of decode rows, sliding; and how match and insert grow with tokens, nodes and components.

python benchmarks/tree.py --repeats 200
python benchmarks/tree_plot.py            draws the growth
"""

import argparse
import itertools
import statistics
import time
from collections.abc import Callable, Iterator

import numpy as np
from record import record
from tqdm import tqdm

from corymb.cache.cache import Cache
from corymb.cache.config import CacheConfig
from corymb.cache.key import Key
from corymb.cache.lease import Lease
from corymb.serve.garbage import settle

ROWS = 256
PROMPT = 32_768
FINISHING = 1024  # tokens of each of the requests that end together
WINDOW = 512
INTERVAL = 256
COMBINATIONS = ("full", "full+index", "full+sliding", "full+recurrent", "full+sliding+recurrent")


def main() -> None:
    """Every combination at full size, then growth."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=200)
    parser.add_argument("--nodes", type=int, default=100_000)
    parser.add_argument("--page-size", type=int, nargs="+", default=[1, 64])
    parser.add_argument("--components", nargs="+", default=COMBINATIONS, choices=COMBINATIONS)
    parser.add_argument("--growth", action="store_true", help="only growth, in steps of ten up to --nodes")
    options = parser.parse_args()
    cases = list(itertools.product(options.components, options.page_size))
    for components, page_size in tqdm(cases, unit="cache"):
        if not options.growth:
            everything(Bench(components, page_size, options.nodes, options.repeats))
        growth(components, page_size, options.nodes, options.repeats)


def everything(bench: "Bench") -> None:
    """Each kind of call at full size."""
    for parts in (1, 64, 512):
        bench.match(PROMPT, parts)
    for below in (0, PROMPT // 2):
        bench.insert(PROMPT, below)
    for below in (0, FINISHING // 2):
        bench.finish(below)
    bench.grow()
    if bench.config.num_sliding_tokens:
        bench.slide()
    bench.decode_under_pressure()
    bench.evict()


def growth(components: str, page_size: int, most_nodes: int, repeats: int) -> None:
    """Match and insert by tokens in a small tree, and by nodes."""
    small = Bench(components, page_size, 100, repeats)
    for tokens in (512, 2048, 8192, PROMPT):
        small.match(tokens, 16, case="by tokens")
        small.insert(tokens, 0, case="by tokens")
    for exponent in range(3, len(str(most_nodes))):
        bench = Bench(components, page_size, 10**exponent, repeats)
        bench.match(PROMPT, 16, case="by nodes")
        bench.insert(PROMPT, 0, case="by nodes")


class Bench:
    """One combination of components over a cache that holds a random tree. Cases leave it as large as it was, but for
    the last two, which evict."""

    def __init__(self, components: str, page_size: int, num_nodes: int, repeats: int) -> None:
        self.repeats = repeats
        self.num_finishing = 2 * max(repeats // 20, 3)
        self.page_size = page_size
        self.num_nodes = num_nodes
        self.params = {"components": components, "page_size": page_size, "nodes": num_nodes}
        self.serial = 0
        leaf = max(32, page_size)
        # What the cases insert must not push the tree out: some 120 long prompts, and the requests that end together.
        spare = 130 * PROMPT + (self.num_finishing + 2) * ROWS * (FINISHING + 2 * page_size)
        size = (num_nodes * leaf * 2 + spare) // page_size * page_size
        self.config = CacheConfig(
            num_full_tokens=size,
            num_sliding_tokens=size if "sliding" in components else 0,
            sliding_window=WINDOW if "sliding" in components else 0,
            num_states=2 * num_nodes + 4096 if "recurrent" in components else 0,
            state_interval=INTERVAL,
            state_grid=64,
            has_index="index" in components,
            page_size=page_size,
            num_rows=ROWS + 2,
            context_length=2 * PROMPT,
        )
        self.cache = Cache(self.config)
        self._fill(leaf)
        settle()  # as the scheduler's process does every second

    def _fill(self, leaf: int) -> None:
        """Leaves below a few hundred shared beginnings."""
        random = np.random.default_rng(0)
        while len(self.cache.tree.nodes) <= self.num_nodes:
            start = np.full(leaf, random.integers(300), np.int32)
            self.add(np.concatenate((start, random.integers(1000, 50_000, leaf, np.int32))))

    def fresh(self, count: int) -> np.ndarray:
        """Tokens that no other sequence begins with."""
        self.serial += 1
        first = 100_000 + 1000 * self.serial
        return np.random.default_rng(self.serial).integers(first, first + 1000, count, np.int32)

    def begin(self, tokens: np.ndarray) -> Lease:
        """Lets one request compute `tokens`, as far as the tree does not have them."""
        lease = self.cache.open(Key(tokens), len(tokens) - 1)
        assert lease is not None
        row = int32(lease.row)
        assert self.cache.grow(row, int32(len(tokens) - lease.num_cached)) is not None
        self.cache.take_state_writes(row, int32(len(tokens)))
        self.cache.take_table_writes()
        self.cache.take_sliding_writes()
        return lease

    def add(self, tokens: np.ndarray) -> None:
        """Lets one request compute `tokens` and finish."""
        self.cache.close(self.begin(tokens), tokens)

    def match(self, tokens: int, parts: int, case: str = "full size") -> None:
        """A cached prompt whose path is made of `parts` nodes."""
        cache, prompt = self.cache, self.fresh(tokens)
        for stop in range(tokens // parts, tokens + 1, tokens // parts):
            self.add(prompt[:stop])
        self.add(prompt[: tokens - self.page_size])
        key, limit = Key(prompt), tokens - self.page_size
        assert cache.match(key, limit) == limit
        params = {"tokens": tokens, "path": parts, "case": case}
        self.report("tree_match_ms", timed(self.repeats, lambda: cache.match(key, limit)), call="match", **params)

        def open_and_close() -> None:
            lease = cache.open(key, limit)
            assert lease is not None
            assert lease.num_cached == limit
            cache.close(lease, None)

        self.report("tree_match_ms", timed(self.repeats, open_and_close), call="open+close", **params)

    def insert(self, tokens: int, below: int, case: str = "full size") -> None:
        """A request that has computed `tokens` beyond `below` cached ones ends: insert, unlock, row back."""
        seconds, base = [], self.fresh(below)
        if below:
            self.add(base)
        for _ in range(min(self.repeats, 50)):
            sequence = np.concatenate((base, self.fresh(tokens)))
            lease = self.begin(sequence)
            started = time.perf_counter()
            self.cache.close(lease, sequence)
            seconds.append(time.perf_counter() - started)
        self.report("tree_insert_ms", seconds, tokens=tokens, below=below, case=case)

    def finish(self, below: int) -> None:
        """256 requests of 1,024 tokens end in one step."""
        seconds, base = [], self.fresh(below)
        for _ in range(self.num_finishing // 2):
            sequences = [np.concatenate((base, self.fresh(FINISHING - below))) for _ in range(ROWS)]
            leases = [self.begin(sequence) for sequence in sequences]
            started = time.perf_counter()
            for lease, sequence in zip(leases, sequences, strict=True):
                self.cache.close(lease, sequence)
            seconds.append(time.perf_counter() - started)
        self.report("tree_finish_ms", seconds, rows=ROWS, tokens=FINISHING, below=below)

    def rows(self, length: int) -> tuple[list[Lease], np.ndarray]:
        """Opens 256 requests that have computed `length` tokens each."""
        leases = [self.begin(self.fresh(length)) for _ in range(ROWS)]
        return leases, np.array([lease.row for lease in leases], np.int32)

    def grow(self) -> None:
        """One token for each of 256 rows, from free pages, with what a step does to states."""
        leases, rows = self.rows(700)
        computed, ones = np.full(ROWS, 700, np.int32), np.ones(ROWS, np.int32)

        def step() -> None:
            assert self.cache.grow(rows, ones) is not None
            np.add(computed, 1, out=computed)
            self.cache.take_state_writes(rows, computed)

        self.report("tree_grow_ms", timed(min(self.repeats, 300), step), rows=ROWS)
        for lease in leases:
            self.cache.close(lease, None)

    def slide(self) -> None:
        """Every row frees the page that fell behind its window, if one did."""
        leases, rows = self.rows(700)
        computed, seconds = np.full(ROWS, 700, np.int32), []
        for _ in range(min(self.repeats, 300)):
            assert self.cache.grow(rows, np.ones(ROWS, np.int32)) is not None
            computed += 1
            started = time.perf_counter()
            self.cache.slide(rows, computed)
            seconds.append(time.perf_counter() - started)
        self.report("tree_slide_ms", seconds, rows=ROWS)
        for lease in leases:
            self.cache.close(lease, None)

    def decode_under_pressure(self) -> None:
        """One token for each of 256 rows when nothing is free: every step evicts first."""
        leases, rows = self.rows(17)
        pools = [self.cache.full, *([self.cache.sliding_pool.slots] if self.cache.sliding_pool else [])]
        held = [(pool, pool.allocate(pool.num_free)) for pool in pools]
        ones = np.ones(ROWS, np.int32)
        seconds = timed(min(self.repeats, 300), lambda: self.cache.grow(rows, ones))
        self.report("tree_grow_evicting_ms", seconds, rows=ROWS)
        for pool, pages in held:
            pool.free(pages)
        for lease in leases:
            self.cache.close(lease, None)

    def evict(self) -> None:
        """The least recently used 100,000 slots, or a tenth of a small tree's, again and again."""
        slots, seconds = min(100_000, self.cache.available().full // 10), []
        for _ in range(5):
            started = time.perf_counter()
            self.cache.execute(self.cache.tree.evict({"full": slots}))
            seconds.append(time.perf_counter() - started)
        self.report("tree_evict_ms", seconds, slots=slots)

    def report(self, metric: str, seconds: list[float], **params: str | int) -> None:
        """Records the median; minimum and 99th percentile go along, as other work disturbs both."""
        ordered = sorted(second * 1e3 for second in seconds)
        spread = {
            "min": round(ordered[0], 4),
            "p99": round(ordered[int(len(ordered) * 0.99)], 4),
            "repeats": len(ordered),
        }
        record("tree", metric, statistics.median(ordered), "ms", **self.params, **params, **spread)


def timed(repeats: int, call: Callable[[], object]) -> list[float]:
    """Returns how many seconds each call took."""
    return list(_timed(repeats, call))


def _timed(repeats: int, call: Callable[[], object]) -> Iterator[float]:
    for _ in range(repeats):
        started = time.perf_counter()
        call()
        yield time.perf_counter() - started


def int32(*values: int) -> np.ndarray:
    """Returns a small array."""
    return np.array(values, np.int32)


if __name__ == "__main__":
    main()
