"""Random lives of random requests, checked after every step against `naive_cache.py` and `naive_device.py`."""

import math
from collections import Counter
from typing import ClassVar

import numpy as np
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from naive_cache import NaiveCache, Request, Tokens, tree_entries
from naive_device import Device

from corymb.cache.cache import Cache
from corymb.cache.config import CacheConfig
from corymb.cache.key import Key, Namespace


def int32(values: list[int]) -> np.ndarray:
    return np.array(values, np.int32)


KINDS = [(), ("sliding",), ("recurrent",), ("sliding", "recurrent"), ("sliding", "recurrent"), ("index",)]

configs = st.builds(
    lambda kinds, page_size, pages, sliding_pages, window, states, grid, interval, **rest: CacheConfig(
        page_size=page_size,
        num_full_tokens=pages * page_size,
        num_sliding_tokens=min(sliding_pages, pages) * page_size if "sliding" in kinds else 0,
        sliding_window=window if "sliding" in kinds else 0,
        num_states=states if "recurrent" in kinds else 0,
        state_grid=grid,
        state_interval=math.lcm(page_size, grid) * interval,
        has_index="index" in kinds,
        num_rows=5,
        context_length=8 * page_size + 48,
        **rest,
    ),
    kinds=st.sampled_from(KINDS),
    page_size=st.sampled_from([1, 4, 64]),
    pages=st.integers(12, 90),
    sliding_pages=st.integers(8, 30),
    window=st.sampled_from([1, 2, 3, 5, 9, 14]),
    states=st.sampled_from([3, 4, 5, 6, 9, 30]),
    grid=st.sampled_from([1, 1, 8]),
    interval=st.integers(1, 3),
    max_states_per_path=st.sampled_from([None, 1, 2]),
    eviction=st.sampled_from(["lru", "lfu", "slru", "priority", "tlru", "tlru"]),
    eviction_slack=st.sampled_from([0, 4, 20, 80]),
    enable_prefix_cache=st.integers(0, 19).map(bool),
)
namespaces = st.sampled_from([*[(None, None)] * 4, (None, "a"), ("a", None)])
# Runs of one token, so that large pages can be equal too.
suffixes = st.lists(st.tuples(st.integers(0, 1), st.integers(1, 20)), min_size=1, max_size=4)
picks = st.integers(0, 1 << 16)


class CacheMachine(RuleBasedStateMachine):
    """Requests open, compute in chunks or single tokens, commit, slide, finish, are retracted."""

    steps = 0
    kinds: ClassVar[Counter[tuple[str, ...]]] = Counter()

    @initialize(config=configs)
    def start(self, config: CacheConfig) -> None:
        self.config = config
        self.cache = Cache(config)
        self.naive = NaiveCache(config)
        self.device = Device(config)
        self.history: list[Tokens] = [()]

    @property
    def kinds_now(self) -> tuple[str, ...]:
        return tuple(component.name for component in self.cache.tree.components)

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

    def begin(self, tokens: Tokens, namespace: Namespace, priority: int, limit: int) -> Request:
        limit = len(tokens) - 1 if limit % 4 else limit % len(tokens)
        key = Key(int32(list(tokens)), *namespace)
        found = self.cache.match(key, limit)
        assert found == self.naive.match(namespace, tokens, limit), "wrong hit length"
        lease = self.cache.open(key, limit, priority=priority)
        assert lease is not None
        hit = self.naive.open(namespace, tokens, limit)
        assert lease.num_cached == lease.num_reserved == hit == found
        pin = self.naive.pin_at(namespace, tokens[:hit]) if self.config.sliding_window else None
        branch = self.naive.branch(namespace, tokens, limit, hit)
        assert lease.branch == branch, "a missing state is not seen, or one where none is missing"
        request = Request(lease, namespace, list(tokens), priority, hit, hit, hit, pin, branch, passed=hit)
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
        num_states = sum(not r.works for r in chosen) if self.config.num_states else 0
        fits = self.naive.make_room(sum(pages) * self.config.page_size, num_states)
        slots = self.cache.grow(rows, int32(widths))
        assert (slots is not None) == fits
        if slots is None:
            return False
        if self.config.num_states:
            for request in chosen:
                request.works = True
            self.naive.pass_on(chosen, [r.computed + w for r, w in zip(chosen, widths, strict=True)])
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
        if self.naive.floor(len(tokens)) > request.shared and self.config.enable_prefix_cache:
            request.shared = self.naive.insert(request, tokens, finished=False)
            self.history.append(tokens)
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

    @rule(pick=picks, wanted=st.integers(1, 40))
    def evict(self, pick, wanted) -> None:
        """One kind of memory alone is short."""
        kind = self.naive.kinds[pick % len(self.naive.kinds)]
        wanted = wanted % 4 + 1 if kind == "recurrent" else wanted
        self.cache.execute(self.cache.tree.evict({kind: wanted}))
        self.naive.evict(kind, wanted)

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
        CacheMachine.kinds[self.kinds_now] += 1
        self.cache.check()
        entries = self.naive.entries.items()
        expected = {name: (entry.live, entry.state, entry.hits, entry.priority) for name, entry in entries}
        assert tree_entries(self.cache) == expected
        usage = self.cache.usage()
        for pool, sliding in (("full", False), ("sliding", True)) if self.config.sliding_window else (("full", False),):
            assert usage[pool].free == self.naive.free(sliding=sliding)
            assert usage[pool].evictable == self.naive.evictable(sliding=sliding)
        if self.config.num_states:
            assert usage["recurrent"].free == self.naive.free_states
            assert usage["recurrent"].evictable == self.naive.evictable_states


def test_random_requests_agree_with_the_naive_cache() -> None:
    CacheMachine.steps = 0
    # No health checks: a busy machine is no failure.
    run_state_machine_as_test(CacheMachine, settings=settings(settings.default, suppress_health_check=HealthCheck))
    print(f"{CacheMachine.steps} steps, {dict(CacheMachine.kinds)}")
    assert CacheMachine.steps >= 40 * settings.default.max_examples, "too few steps to mean anything"
