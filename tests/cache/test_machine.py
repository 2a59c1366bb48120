"""Random lives of random requests, against a cache and a device that are too simple to be wrong.

`NaiveCache` is a dict of prefixes that finds everything by looking at everything. `Device` does what a runner does with
what the cache hands out, so a wrong, lost, early freed or doubly owned slot shows as wrong content.
"""

from dataclasses import dataclass, field, replace

import numpy as np
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from corymb.cache.cache import Cache
from corymb.cache.config import CacheConfig
from corymb.cache.key import Key
from corymb.cache.lease import Lease
from corymb.cache.node import Node

Tokens = tuple[int, ...]
Name = tuple[tuple[str | None, str | None], Tokens]  # namespace and prefix


@dataclass
class Entry:
    """What lies under one prefix: the tokens from the next shorter entry's end to this one's."""

    live: bool  # sliding twins alive
    stamp: int
    sliding_stamp: int
    hits: int
    priority: int


@dataclass(eq=False)
class Request:
    """An open lease, and what the test knows of it."""

    lease: Lease
    namespace: tuple[str | None, str | None]
    tokens: list[int]
    priority: int
    computed: int
    shared: int  # the tree's part of its row
    slid: int
    pin: int | None  # its sliding lock covers the entries of its shared part that start here or later

    @property
    def end(self) -> Tokens:
        return tuple(self.tokens[: self.shared])


@dataclass
class NaiveCache:
    """A dict of prefixes."""

    config: CacheConfig
    entries: dict[Name, Entry] = field(default_factory=dict)
    requests: list[Request] = field(default_factory=list)
    now: int = 0

    @property
    def reach(self) -> int:
        return max(self.config.sliding_window - 1, 1)

    @property
    def tail(self) -> int:
        return -(-self.reach // self.config.page_size) * self.config.page_size + self.config.page_size

    def floor(self, count: int) -> int:
        return count - count % self.config.page_size

    def start(self, name: Name) -> int:
        shorter = [
            len(p) for ns, p in self.entries if ns == name[0] and len(p) < len(name[1]) and p == name[1][: len(p)]
        ]
        return max(shorter, default=0)

    def is_leaf(self, name: Name) -> bool:
        ns, prefix = name
        return not any(n == ns and len(p) > len(prefix) and p[: len(prefix)] == prefix for n, p in self.entries)

    def is_locked(self, name: Name) -> bool:
        return any(r.namespace == name[0] and r.end[: len(name[1])] == name[1] for r in self.requests)

    def is_pinned(self, name: Name) -> bool:
        return any(
            r.namespace == name[0]
            and r.end[: len(name[1])] == name[1]
            and r.pin is not None
            and self.start(name) >= r.pin
            for r in self.requests
        )

    def path(self, namespace: tuple[str | None, str | None], tokens: Tokens) -> list[tuple[Name, int]]:
        """Entries along `tokens`, each with how many tokens match up to its end or inside it."""
        found = []
        for name in self.entries:
            common = 0
            while common < min(len(tokens), len(name[1])) and tokens[common] == name[1][common]:
                common += 1
            common = self.floor(common)
            if name[0] == namespace and common > self.start(name):
                found.append((name, common))
        return sorted(found, key=lambda item: len(item[0][1]))

    def split(self, name: Name, at: int) -> Name:
        upper = (name[0], name[1][:at])
        if upper not in self.entries:
            self.entries[upper] = replace(self.entries[name])
        return upper

    def match(self, namespace: tuple[str | None, str | None], tokens: Tokens, limit: int) -> int:
        if not self.config.enable_prefix_cache:
            return 0
        best, run = 0, self.reach
        for name, at in self.path(namespace, tokens[: self.floor(limit)]):
            run = run + at - self.start(name) if self.entries[name].live else 0
            if not self.config.sliding_window or run >= self.reach:
                best = at
        return best

    def touch(self, namespace: tuple[str | None, str | None], end: Tokens) -> None:
        for (ns, prefix), entry in self.entries.items():
            if ns == namespace and prefix == end[: len(prefix)]:
                entry.stamp = self.now
                if len(prefix) > len(end) - self.tail:
                    entry.sliding_stamp = self.now

    def pin_at(self, namespace: tuple[str | None, str | None], end: Tokens) -> int | None:
        inside = [name for name, _ in self.path(namespace, end) if len(name[1]) > len(end) - self.reach]
        return self.start(inside[0]) if inside else None

    def open(self, namespace: tuple[str | None, str | None], tokens: Tokens, limit: int) -> int:
        hit = self.match(namespace, tokens, limit)
        self.now += 1
        if hit:
            self.split(self.path(namespace, tokens[:hit])[-1][0], hit)
            self.touch(namespace, tokens[:hit])
        return hit

    def insert(self, request: Request, tokens: Tokens, *, finished: bool) -> int:
        if not self.config.enable_prefix_cache:
            return 0
        self.now += 1
        ns, tokens = request.namespace, tokens[: self.floor(len(tokens))]
        for name, at in self.path(ns, tokens):
            top = self.split(name, at)
            inside = self.start(top) < request.slid < at and self.start(top) >= request.shared
            if self.config.sliding_window and inside and not self.entries[top].live:
                self.split(top, request.slid)
        for name, _ in self.path(ns, tokens):
            entry = self.entries[name]
            entry.hits += finished
            entry.priority = max(entry.priority, request.priority)
            if self.start(name) >= max(request.shared, request.slid):
                entry.live = bool(self.config.sliding_window)
        known = max((at for _, at in self.path(ns, tokens)), default=0)
        ends = [request.slid, len(tokens) - self.tail] if self.config.sliding_window else []
        ends = sorted({end for end in ends if known < end < len(tokens) and end >= request.slid} | {len(tokens)})
        for start, end in zip([known, *ends], ends, strict=False):
            if end > start:
                live = bool(self.config.sliding_window) and start >= request.slid
                self.entries[ns, tokens[:end]] = Entry(live, self.now, self.now, int(finished), request.priority)
        self.touch(ns, tokens)
        return len(tokens)

    def own_pages(self, request: Request, *, sliding: bool) -> int:
        start = max(request.slid, request.shared) if sliding else request.shared
        reserved = -(-request.lease.num_reserved // self.config.page_size) * self.config.page_size
        return max(reserved - start, 0) // self.config.page_size

    def free(self, *, sliding: bool) -> int:
        total = (self.config.num_sliding_tokens if sliding else self.config.num_full_tokens) - self.config.page_size
        tree = sum(len(n[1]) - self.start(n) for n, entry in self.entries.items() if entry.live or not sliding)
        return total - tree - sum(self.own_pages(r, sliding=sliding) for r in self.requests) * self.config.page_size

    def evictable(self, *, sliding: bool) -> int:
        held = self.is_pinned if sliding else self.is_locked
        names = [n for n, entry in self.entries.items() if (entry.live or not sliding) and not held(n)]
        return sum(len(n[1]) - self.start(n) for n in names)

    def make_room(self, count: int) -> bool:
        pools = (False, True) if self.config.sliding_window else (False,)
        if any(count > self.free(sliding=s) + self.evictable(sliding=s) for s in pools):
            return False
        while self.free(sliding=False) < count:
            leaves = [n for n in self.entries if self.is_leaf(n) and not self.is_locked(n)]
            del self.entries[min(leaves, key=self.rank)]
        while self.config.sliding_window and self.free(sliding=True) < count:
            names = [n for n, entry in self.entries.items() if entry.live and not self.is_pinned(n)]
            victim = min(names, key=lambda n: (self.entries[n].sliding_stamp, self.start(n)))
            if self.is_leaf(victim) and not self.is_locked(victim):
                del self.entries[victim]
            else:
                self.entries[victim].live = False
        return True

    def rank(self, name: Name) -> tuple[int, ...]:
        entry = self.entries[name]
        first = {"lru": 0, "lfu": entry.hits, "slru": int(entry.hits >= 2), "priority": entry.priority}
        return (first[self.config.eviction], entry.stamp)


class Device:
    """Tables and pools as a runner keeps them. A slot's content names the whole prefix that it was computed from."""

    def __init__(self, config: CacheConfig) -> None:
        self.config = config
        self.table = np.full((config.num_rows, config.context_length), -1)
        self.twins = np.zeros(config.num_full_tokens, np.int64)
        self.full = np.zeros(config.num_full_tokens, np.int64)
        self.sliding = np.zeros(config.num_sliding_tokens, np.int64)

    def run(self, cache: Cache, requests: list[Request], widths: list[int], slots: np.ndarray) -> None:
        writes, sliding = cache.take_table_writes(), cache.take_sliding_writes()
        self.table[writes.rows, writes.positions] = writes.slots
        if sliding is not None:
            self.twins[sliding.full] = sliding.sliding
        assert len(slots) == sum(widths)
        at = 0
        for request, width in zip(requests, widths, strict=True):
            stop = request.computed + width
            self.table[request.lease.row, request.computed : stop] = slots[at : at + width]
            at += width
        for request, width in zip(requests, widths, strict=True):
            self.forward(request, width)

    def forward(self, request: Request, width: int) -> None:
        start, stop = request.computed, request.computed + width
        contents = self.contents(request)
        slots = self.table[request.lease.row, :stop]
        self.full[slots[start:]] = contents[start:stop]
        assert (self.full[slots] == contents[:stop]).all(), "a full slot holds something else"
        assert (slots >= self.config.page_size).all(), "page 0 was handed out"
        if self.config.sliding_window:
            twins = self.twins[slots]
            assert (twins[start:] >= self.config.page_size).all(), "a new token has no sliding slot"
            self.sliding[twins[start:]] = contents[start:stop]
            first = max(start - self.config.sliding_window + 1, 0)
            assert (twins[first:] > 0).all(), "a window is not complete"
            assert (self.sliding[twins[first:]] == contents[first:stop]).all(), "a sliding slot holds something else"

    @staticmethod
    def contents(request: Request) -> np.ndarray:
        value, contents = hash(request.namespace), []
        for token in request.tokens:
            value = hash((value, token))
            contents.append(value)
        return np.array(contents, np.int64)


def int32(values: list[int]) -> np.ndarray:
    return np.array(values, np.int32)


configs = st.builds(
    lambda page_size, pages, sliding_pages, window, **rest: CacheConfig(
        page_size=page_size,
        num_full_tokens=pages * page_size,
        num_sliding_tokens=min(sliding_pages, pages) * page_size if window else 0,
        sliding_window=window,
        num_rows=5,
        context_length=8 * page_size + 48,
        **rest,
    ),
    page_size=st.sampled_from([1, 4, 16]),
    pages=st.integers(12, 90),
    sliding_pages=st.integers(8, 30),
    window=st.sampled_from([0, 1, 2, 3, 5, 9, 14]),
    eviction=st.sampled_from(["lru", "lfu", "slru", "priority"]),
    enable_prefix_cache=st.integers(0, 19).map(bool),
)
namespaces = st.sampled_from([*[(None, None)] * 4, (None, "a"), ("a", None)])
# Runs of one token, so that large pages can be equal too.
suffixes = st.lists(st.tuples(st.integers(0, 1), st.integers(1, 20)), min_size=1, max_size=4)
picks = st.integers(0, 1 << 16)


class CacheMachine(RuleBasedStateMachine):
    """Requests open, compute in chunks or single tokens, commit, slide, finish, are retracted."""

    steps = 0

    @initialize(config=configs)
    def start(self, config: CacheConfig) -> None:
        self.config = config
        self.cache = Cache(config)
        self.naive = NaiveCache(config)
        self.device = Device(config)
        self.history: list[Tokens] = [()]

    @property
    def requests(self) -> list[Request]:
        return self.naive.requests

    def prompt(self, pick: int, cut: int, suffix: list[tuple[int, int]]) -> Tokens:
        """Continues some earlier sequence from somewhere."""
        base = self.history[-1 - pick % min(len(self.history), 8)]
        tail = tuple(token for token, count in suffix for _ in range(count))
        return (base[: len(base) - cut % (len(base) + 1)] + tail)[: self.config.context_length - 8]

    @precondition(lambda self: self.cache.num_free_rows)
    @rule(pick=picks, cut=picks, suffix=suffixes, namespace=namespaces, priority=st.integers(-1, 1), limit=picks)
    def open(self, pick, cut, suffix, namespace, priority, limit) -> None:
        self.begin(self.prompt(pick, cut, suffix), namespace, priority, limit)

    def begin(self, tokens: Tokens, namespace: tuple[str | None, str | None], priority: int, limit: int) -> Request:
        limit = len(tokens) - 1 if limit % 4 else limit % len(tokens)
        key = Key(int32(list(tokens)), *namespace)
        found = self.cache.match(key, limit)
        assert found == self.naive.match(namespace, tokens, limit), "wrong hit length"
        lease = self.cache.open(key, limit, priority=priority)
        assert lease is not None
        hit = self.naive.open(namespace, tokens, limit)
        assert lease.num_cached == lease.num_reserved == hit == found
        pin = self.naive.pin_at(namespace, tokens[:hit]) if self.config.sliding_window else None
        request = Request(lease, namespace, list(tokens), priority, hit, hit, hit, pin)
        self.requests.append(request)
        return request

    @precondition(lambda self: not self.cache.num_free_rows)
    @rule()
    def open_without_a_row(self) -> None:
        assert self.cache.open(Key(int32([0, 1])), 1) is None

    @precondition(lambda self: self.cache.num_free_rows)
    @rule(pick=picks, cut=picks, suffix=suffixes, namespace=namespaces, chunk=st.integers(1, 60), commits=st.booleans())
    def whole_request(self, pick, cut, suffix, namespace, chunk, commits) -> None:
        """One that nothing interrupts."""
        request = self.begin(self.prompt(pick, cut, suffix), namespace, 0, 1)
        while request.computed < len(request.tokens):
            if not self.step([request], chunk, slides=commits):
                return self.retract(len(self.requests) - 1)
            if commits:
                self.commit(len(self.requests) - 1, 0)
        return self.finish(len(self.requests) - 1, 0)

    @precondition(lambda self: self.requests)
    @rule(chunk=st.integers(1, 60), slides=st.integers(0, 3).map(bool))
    def prefill(self, chunk, slides) -> None:
        self.step([r for r in self.requests if r.computed < len(r.tokens)], chunk, slides=slides)

    @precondition(lambda self: self.requests)
    @rule(skip=st.integers(0, 9), token=st.integers(0, 1), count=st.integers(1, 40), slides=st.integers(0, 3).map(bool))
    def decode(self, skip, token, count, slides) -> None:
        for _ in range(count):
            chosen = [r for i, r in enumerate(self.requests) if i != skip and r.computed == len(r.tokens)]
            chosen = [r for r in chosen if r.computed < self.config.context_length]
            for request in chosen:
                request.tokens.append(token)
            if not self.step(chosen, 1, slides=slides):
                for request in chosen:
                    request.tokens.pop()
                return

    def step(self, chosen: list[Request], chunk: int, *, slides: bool) -> bool:
        """Computes the next tokens of some requests, if there is room."""
        widths = [min(chunk, len(r.tokens) - r.computed) for r in chosen]
        pages = [self.pages(r.computed + w) - self.pages(r.computed) for r, w in zip(chosen, widths, strict=True)]
        rows = int32([r.lease.row for r in chosen])
        fits = self.naive.make_room(sum(pages) * self.config.page_size)
        slots = self.cache.grow(rows, int32(widths))
        assert (slots is not None) == fits
        if slots is None:
            return False
        self.device.run(self.cache, chosen, widths, slots)
        for request, width in zip(chosen, widths, strict=True):
            request.computed += width
        if slides:
            self.slide(chosen, rows)
        return True

    def pages(self, count: int) -> int:
        return -(-count // self.config.page_size)

    def slide(self, chosen: list[Request], rows: np.ndarray) -> None:
        self.cache.slide(rows, int32([r.computed for r in chosen]))
        for request in chosen if self.config.sliding_window else []:
            edge = self.naive.floor(max(request.computed - self.naive.reach - self.config.page_size, 0))
            request.slid = max(request.slid, edge)
            if edge >= request.shared:
                request.pin = None

    @precondition(lambda self: self.requests)
    @rule(which=picks, late=st.integers(0, 2))
    def commit(self, which, late) -> None:
        request = self.requests[which % len(self.requests)]
        tokens = tuple(request.tokens[: max(request.computed - late, 0)])
        self.cache.commit(request.lease, int32(list(tokens)))
        count = self.naive.insert(request, tokens, finished=False)
        self.history.append(tokens)
        if count > request.shared:
            request.shared = count
            request.pin = self.naive.pin_at(request.namespace, request.end) if self.config.sliding_window else None

    @precondition(lambda self: self.requests)
    @rule(which=picks, late=st.integers(0, 2))
    def finish(self, which, late) -> None:
        request = self.requests[which % len(self.requests)]
        tokens = tuple(request.tokens[: max(request.computed - late, 0)])
        self.cache.close(request.lease, int32(list(tokens)))
        self.naive.insert(request, tokens, finished=True)
        self.requests.remove(request)
        self.history.append(tokens)

    @precondition(lambda self: self.requests)
    @rule(which=picks)
    def retract(self, which) -> None:
        request = self.requests.pop(which % len(self.requests))
        self.cache.close(request.lease, None)

    @rule(often=st.integers(0, 9))
    def flush(self, often) -> None:
        if often and not self.requests:
            return
        assert self.cache.flush() == (not self.requests)
        if not self.requests:
            self.naive.entries.clear()

    @invariant()
    def agrees(self) -> None:
        if not hasattr(self, "cache"):
            return
        CacheMachine.steps += 1
        self.cache.check()
        expected = {name: (entry.live, entry.hits, entry.priority) for name, entry in self.naive.entries.items()}
        assert tree_entries(self.cache.tree.root) == expected
        usage = self.cache.usage()
        for pool, sliding in (("full", False), ("sliding", True)) if self.config.sliding_window else (("full", False),):
            assert usage[pool].free == self.naive.free(sliding=sliding)
            assert usage[pool].evictable == self.naive.evictable(sliding=sliding)


def tree_entries(root: Node) -> dict[Name, tuple[bool, int, int]]:
    """Returns every node's name, and whether its sliding twins live, its hits and its priority."""
    found: dict[Name, tuple[bool, int, int]] = {}
    stack: list[tuple[Node, tuple[str | None, str | None] | None, Tokens]] = [(root, None, ())]
    while stack:
        parent, namespace, prefix = stack.pop()
        for edge, node in parent.children.items():
            own = namespace or (edge[0] if isinstance(edge, tuple) else (None, None))
            tokens = prefix + tuple(np.frombuffer(node.tokens, np.int32).tolist())
            live = len(node.values) > 1 and node.values[1] is not None
            found[own, tokens] = (live, node.hits, node.priority)
            stack.append((node, own, tokens))
    return found


def test_random_requests_agree_with_the_naive_cache() -> None:
    CacheMachine.steps = 0
    run_state_machine_as_test(CacheMachine, settings=settings.get_profile(settings._current_profile))
    print(f"{CacheMachine.steps} steps")
