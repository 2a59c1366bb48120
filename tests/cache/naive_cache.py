"""A cache and a device that are too simple to be wrong, to hold the real cache against.

`NaiveCache` is a dict of prefixes that finds everything by looking at everything. `Device` does what a runner does with
what the cache hands out, so a wrong, lost, early freed or doubly owned slot shows as wrong content.
"""

from dataclasses import dataclass, field, replace

import numpy as np

from corymb.cache.cache import Cache
from corymb.cache.config import CacheConfig
from corymb.cache.key import Namespace
from corymb.cache.lease import Lease
from corymb.cache.node import Node

Tokens = tuple[int, ...]
Name = tuple[Namespace, Tokens]  # namespace and prefix


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
    namespace: Namespace
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

    def path(self, namespace: Namespace, tokens: Tokens) -> list[tuple[Name, int]]:
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

    def match(self, namespace: Namespace, tokens: Tokens, limit: int) -> int:
        if not self.config.enable_prefix_cache:
            return 0
        best, run = 0, self.reach
        for name, at in self.path(namespace, tokens[: self.floor(limit)]):
            run = run + at - self.start(name) if self.entries[name].live else 0
            if not self.config.sliding_window or run >= self.reach:
                best = at
        return best

    def touch(self, namespace: Namespace, end: Tokens) -> None:
        for (ns, prefix), entry in self.entries.items():
            if ns == namespace and prefix == end[: len(prefix)]:
                entry.stamp = self.now
                if len(prefix) > len(end) - self.tail:
                    entry.sliding_stamp = self.now

    def pin_at(self, namespace: Namespace, end: Tokens) -> int | None:
        inside = [name for name, _ in self.path(namespace, end) if len(name[1]) > len(end) - self.reach]
        return self.start(inside[0]) if inside else None

    def open(self, namespace: Namespace, tokens: Tokens, limit: int) -> int:
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


def tree_entries(root: Node) -> dict[Name, tuple[bool, int, int]]:
    """Returns every node's name, and whether its sliding twins live, its hits and its priority."""
    found: dict[Name, tuple[bool, int, int]] = {}
    stack: list[tuple[Node, Namespace | None, Tokens]] = [(root, None, ())]
    while stack:
        parent, namespace, prefix = stack.pop()
        for edge, node in parent.children.items():
            own = namespace or (edge[0] if isinstance(edge, tuple) else (None, None))
            tokens = prefix + tuple(np.frombuffer(node.tokens, np.int32).tolist())
            live = len(node.values) > 1 and node.values[1] is not None
            found[own, tokens] = (live, node.hits, node.priority)
            stack.append((node, own, tokens))
    return found
