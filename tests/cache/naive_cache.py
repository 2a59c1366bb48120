"""A cache that is too simple to be wrong, to hold the real one against: a dict of prefixes that finds everything by
looking at everything."""

import math
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
    deepest: int = 0  # tokens of the longest sequence that ran through it
    state: bool = False  # a recurrent state lies at its end
    state_stamp: int = 0


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
    branch: int = 0  # where the tree lacked a state
    works: bool = False  # it has a state to work in
    is_new: bool = True  # it has not taken a step, so the state that it starts from is pinned
    passed: int = 0  # tokens that its working state has seen
    kept: list[int] = field(default_factory=list)  # tokens that its snapshots have seen

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
            self.entries[upper] = replace(self.entries[name], state=False)
        return upper

    def match(self, namespace: Namespace, tokens: Tokens, limit: int) -> int:
        if not self.config.enable_prefix_cache:
            return 0
        best, run = 0, self.reach
        for name, at in self.path(namespace, tokens[: self.floor(limit)]):
            entry = self.entries[name]
            run = run + at - self.start(name) if entry.live else 0
            window = not self.config.sliding_window or run >= self.reach
            if window and (not self.config.num_states or (entry.state and at == len(name[1]))):
                best = at
        return best

    def branch(self, namespace: Namespace, tokens: Tokens, limit: int, hit: int) -> int:
        """The last whole grid step that the tree has tokens for, if that is beyond the hit."""
        if not (self.config.enable_prefix_cache and self.config.num_states):
            return 0
        known = max((at for _, at in self.path(namespace, tokens[: self.floor(limit)])), default=0)
        known -= known % math.lcm(self.config.page_size, self.config.state_grid)
        return known if known > hit else 0

    def touch(self, namespace: Namespace, end: Tokens) -> None:
        for (ns, prefix), entry in self.entries.items():
            if ns == namespace and prefix == end[: len(prefix)]:
                entry.stamp = self.now
                if len(prefix) > len(end) - self.tail:
                    entry.sliding_stamp = self.now
                if prefix == end:
                    entry.state_stamp = self.now

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
        states = self.give(request, len(tokens), finished=finished)
        self.cut(request, tokens, states)
        for name, _ in self.path(ns, tokens):
            entry = self.entries[name]
            entry.hits += finished
            entry.priority = max(entry.priority, request.priority)
            entry.deepest = max(entry.deepest, len(tokens))
            if self.start(name) >= max(request.shared, request.slid):
                entry.live = bool(self.config.sliding_window)
        known = max((at for _, at in self.path(ns, tokens)), default=0)
        ends = [request.slid, len(tokens) - self.tail] if self.config.sliding_window else []
        ends = [end for end in ends if end >= request.slid] + states
        ends = sorted({end for end in ends if known < end < len(tokens)} | {len(tokens)})
        for start, end in zip([known, *ends], ends, strict=False):
            if end > start:
                live = bool(self.config.sliding_window) and start >= request.slid
                self.entries[ns, tokens[:end]] = Entry(
                    live, self.now, self.now, int(finished), request.priority, len(tokens)
                )
        for stop in states:
            entry = self.entries[ns, tokens[:stop]]
            if not entry.state:
                entry.state, entry.state_stamp = True, self.now
        self.thin(ns, tokens)
        self.touch(ns, tokens)
        return len(tokens)

    def cut(self, request: Request, tokens: Tokens, states: list[int]) -> None:
        """Entries end where the tokens part from them, where sliding twins begin, and where states come."""
        for name, at in self.path(request.namespace, tokens):
            top = self.split(name, at)
            inside = self.start(top) < request.slid < at and self.start(top) >= request.shared
            if self.config.sliding_window and inside and not self.entries[top].live:
                self.split(top, request.slid)
        for stop in states:
            for name, at in self.path(request.namespace, tokens[:stop]):
                if at == stop:
                    self.split(name, stop)

    def give(self, request: Request, length: int, *, finished: bool) -> list[int]:
        """Takes the states from the request that have seen at most `length` tokens."""
        given = [stop for stop in request.kept if stop <= length]
        given = given[-1:] if finished else given
        request.kept = [stop for stop in request.kept if stop not in given]
        if finished and self.config.num_states and request.passed == length > 0 and not request.is_new:
            given = sorted({*given, length})
        return given

    def thin(self, namespace: Namespace, end: Tokens) -> None:
        most = self.config.max_states_per_path
        if most is None:
            return
        path = [name for name, _ in self.path(namespace, end) if self.entries[name].state]
        surplus = len(path) - most
        for name in path:
            children = [n for n in self.entries if n[0] == namespace and n[1][: len(name[1])] == name[1]]
            children = [n for n in children if self.start(n) == len(name[1])]
            if surplus > 0 and name[1] != end and len(children) == 1 and not self.is_source(name):
                self.entries[name].state = False
                surplus -= 1

    def is_source(self, name: Name) -> bool:
        return any(r.namespace == name[0] and r.end == name[1] and r.is_new for r in self.requests)

    def own_pages(self, request: Request, *, sliding: bool) -> int:
        start = max(request.slid, request.shared) if sliding else request.shared
        reserved = -(-request.lease.num_reserved // self.config.page_size) * self.config.page_size
        return max(reserved - start, 0) // self.config.page_size

    def free(self, *, sliding: bool) -> int:
        total = (self.config.num_sliding_tokens if sliding else self.config.num_full_tokens) - self.config.page_size
        tree = sum(len(n[1]) - self.start(n) for n, entry in self.entries.items() if entry.live or not sliding)
        return total - tree - sum(self.own_pages(r, sliding=sliding) for r in self.requests) * self.config.page_size

    @property
    def free_states(self) -> int:
        used = sum(entry.state for entry in self.entries.values())
        used += sum(len(r.kept) + r.works for r in self.requests)
        return max(self.config.num_states - 1, 0) - used

    @property
    def evictable_states(self) -> int:
        return sum(entry.state and not self.is_source(name) for name, entry in self.entries.items())

    def evictable(self, *, sliding: bool) -> int:
        held = self.is_pinned if sliding else self.is_locked
        names = [n for n, entry in self.entries.items() if (entry.live or not sliding) and not held(n)]
        return sum(len(n[1]) - self.start(n) for n in names)

    def make_room(self, count: int, num_states: int = 0) -> bool:
        pools = (False, True) if self.config.sliding_window else (False,)
        if any(count > self.free(sliding=s) + self.evictable(sliding=s) for s in pools):
            return False
        num_kept = sum(len(r.kept) for r in self.requests)
        if num_states > self.free_states + self.evictable_states + num_kept:
            return False
        for kind, wanted in (("full", count), ("sliding", count), ("recurrent", num_states)):
            if kind in self.kinds:
                self.evict(kind, wanted - self.free_of(kind))
        while self.free_states < num_states:
            stop, _, owner = min((stop, r.lease.row, r) for r in self.requests for stop in r.kept)
            owner.kept.remove(stop)
        return True

    @property
    def kinds(self) -> list[str]:
        """Components with memory of their own."""
        sliding, recurrent = bool(self.config.sliding_window), bool(self.config.num_states)
        return ["full", *(["sliding"] if sliding else []), *(["recurrent"] if recurrent else [])]

    def free_of(self, kind: str) -> int:
        return self.free_states if kind == "recurrent" else self.free(sliding=kind == "sliding")

    def evict(self, kind: str, wanted: int) -> None:
        """Until so much more is free, or nothing more may go."""
        target = self.free_of(kind) + wanted
        while self.free_of(kind) < target and (victims := self.victims(kind)):
            name = min(victims, key=lambda n: victims[n])
            entry = self.entries[name]
            if self.is_leaf(name) and not self.is_locked(name):
                del self.entries[name]
            elif kind == "sliding":
                entry.live, entry.state = False, entry.state and self.is_source(name)
            else:
                entry.state = False

    def victims(self, kind: str) -> dict[Name, tuple[int, ...]]:
        """What may go, with its rank."""
        if kind == "full":
            return {n: self.rank(n) for n in self.entries if self.is_leaf(n) and not self.is_locked(n)}
        entries = self.entries.items()
        if kind == "sliding":
            return {n: (e.sliding_stamp, self.start(n)) for n, e in entries if e.live and not self.is_pinned(n)}
        return {n: (e.state_stamp, self.start(n)) for n, e in entries if e.state and not self.is_source(n)}

    def pass_on(self, requests: list[Request], stops: list[int]) -> None:
        """The states of a step that ends at `stops`: snapshots where they are due and there is room."""
        config = self.config
        for request, stop in zip(requests, stops, strict=True):
            request.passed = stop
        due = [r for r in requests if r.passed % config.state_interval == 0 or r.passed == r.branch]
        due = due if config.enable_prefix_cache else []
        # What a row starts from is pinned until its copy is planned, and that is after room was made.
        self.evict("recurrent", sum(len(r.kept) < 2 for r in due) - self.free_states)
        for request in requests:
            request.is_new = False
        for request in due:
            if len(request.kept) == 2:
                request.kept = request.kept[1:]
            elif not self.free_states:
                continue
            request.kept = [*request.kept, request.passed]

    def rank(self, name: Name) -> tuple[int, ...]:
        entry = self.entries[name]
        unsafe = self.start(name) < entry.deepest - self.config.eviction_slack
        first = {"lru": 0, "lfu": entry.hits, "slru": int(entry.hits >= 2), "priority": entry.priority}
        return ((first | {"tlru": int(unsafe)})[self.config.eviction], entry.stamp)


def tree_entries(cache: Cache) -> dict[Name, tuple[bool, bool, int, int]]:
    """Returns every node's name, and whether its sliding twins live, it has a state, its hits and its priority."""
    found: dict[Name, tuple[bool, bool, int, int]] = {}
    stack: list[tuple[Node, Namespace | None, Tokens]] = [(cache.tree.root, None, ())]
    while stack:
        parent, namespace, prefix = stack.pop()
        for edge, node in parent.children.items():
            own = namespace or (edge[0] if isinstance(edge, tuple) else (None, None))
            tokens = prefix + tuple(np.frombuffer(node.tokens, np.int32).tolist())
            live = cache.sliding is not None and node.values[cache.sliding.index] is not None
            state = cache.recurrent is not None and node.values[cache.recurrent.index] is not None
            found[own, tokens] = (live, state, node.hits, node.priority)
            stack.append((node, own, tokens))
    return found
