"""States of rows that draft: whatever is accepted, and whenever the host hears of it, the tree gets exact ones."""

import random
from collections import deque
from dataclasses import dataclass, field

import numpy as np
import pytest

from corymb.cache.cache import Cache
from corymb.cache.config import CacheConfig
from corymb.cache.key import Key
from corymb.cache.lease import Lease

MOST = 5
DEPTH = 3  # steps of a row without results


def int32(values: list[int]) -> np.ndarray:
    return np.array(values, np.int32)


@dataclass
class Request:
    number: int
    lease: Lease
    computed: int  # as the host knows it: at least
    length: int  # as the device knows it
    pending: int = 0
    in_flight: deque[tuple[int, int]] = field(default_factory=deque)  # drafts, and how many of them count

    @property
    def tokens(self) -> np.ndarray:
        """No two requests have a token in common."""
        return np.arange(1000, dtype=np.int32) + 1000 * self.number


class Server:
    """A cache, and a device whose states say of whom and of how many tokens they are."""

    def __init__(self, chooser: random.Random, *, num_states: int, interval: int, page_size: int) -> None:
        config = CacheConfig(
            num_full_tokens=64 * 12, num_rows=5, context_length=200, num_states=num_states,
            state_interval=interval * page_size, page_size=page_size,
        )  # fmt: skip
        self.cache = Cache(config)
        self.states = [(-1, -1)] * num_states
        self.chooser = chooser
        self.requests: list[Request] = []
        self.begun = self.found = 0

    def begin(self) -> None:
        self.begun += 1
        tokens = np.arange(self.chooser.randint(2, 20), dtype=np.int32) + 1000 * self.begun
        lease = self.cache.open(Key(tokens), len(tokens) - 1)
        if lease is None:
            return
        rows, length = int32([lease.row]), int32([len(tokens)])
        if self.cache.grow(rows, length) is None:
            self.cache.close(lease, None)
            return
        writes = self.cache.take_state_writes(rows, length)
        assert writes is not None
        for slot in [*writes.slots, *writes.after_to]:
            self.states[slot] = (self.begun, len(tokens))
        self.cache.commit(lease, tokens)
        self.requests.append(Request(self.begun, lease, len(tokens), len(tokens)))

    def step(self) -> None:
        """Some requests draft."""
        chosen = [one for one in self.requests if len(one.in_flight) < DEPTH and self.chooser.random() < 0.8]
        most = [self.chooser.randint(0, MOST) for _ in chosen]
        ends = [one.computed + one.pending + 1 + extra for one, extra in zip(chosen, most, strict=True)]
        if not chosen or max(ends) > 190:
            return
        rows = int32([one.lease.row for one in chosen])
        widths = np.maximum(int32(ends) - int32([one.lease.num_reserved for one in chosen]), 0)
        if self.cache.grow(rows, widths.astype(np.int32)) is None:
            return
        starts, slack = int32([one.computed for one in chosen]), int32([one.pending for one in chosen])
        writes = self.cache.pass_states(rows, starts, slack)
        assert writes is not None
        assert writes.landmarks is not None
        marks = zip(writes.landmarks.positions.tolist(), writes.landmarks.slots.tolist(), strict=True)
        for one, working, (position, target), extra in zip(chosen, writes.slots.tolist(), marks, most, strict=True):
            owner, seen = self.states[working]
            assert owner == one.number, "a row works in another's state"
            if seen < position <= one.length:
                self.states[target] = (owner, position)
            self.states[working] = (owner, one.length)
            accepted = self.chooser.randint(0, extra)
            one.in_flight.append((extra, accepted))
            one.length += 1 + accepted
            one.computed, one.pending = one.computed + 1, one.pending + extra

    def hear(self) -> None:
        """The oldest result of some request."""
        for one in self.chooser.sample(self.requests, min(1, len(self.requests))):
            if one.in_flight:
                drafts, accepted = one.in_flight.popleft()
                one.computed, one.pending = one.computed + accepted, one.pending - drafts
                if one.in_flight:
                    self.cache.settle_state(one.lease.row, accepted, drafts)

    def end(self) -> None:
        """A request ends where it is, or some tokens before, as at a stop token; steps of it may be in flight."""
        if not self.requests:
            return
        one = self.requests.pop(self.chooser.randrange(len(self.requests)))
        known = one.computed - len(one.in_flight) + 1
        length = min(known - self.chooser.choice([0, 0, 0, 1, 3]), one.computed)
        self.cache.close(one.lease, one.tokens[:length] if self.chooser.random() < 0.9 else None)
        self.check()

    def check(self) -> None:
        self.cache.check()
        for node in self.cache.tree.nodes.values():
            if node.parent is not None and (value := node.values[1]) is not None:
                number = int(np.frombuffer(node.tokens, np.int32)[0]) // 1000
                assert self.states[value[0]] == (number, node.stop), "the tree has another state than it says"
                self.found += 1


@pytest.mark.parametrize("page_size", [1, 4])
@pytest.mark.parametrize("interval", [1, 2, 3, 8])
def test_states_in_the_tree_are_what_they_say(interval: int, page_size: int) -> None:
    found = 0
    for seed in range(12):
        chooser, num_states = random.Random(seed), (4, 7, 40)[seed % 3]
        server = Server(chooser, num_states=num_states, interval=interval, page_size=page_size)
        turns = [server.begin, server.end, *[server.hear] * 2, *[server.step] * 3]
        for _ in range(120):
            chooser.choice(turns)()
            server.cache.check()
        while server.requests:
            server.end()
        found += server.found
    assert found > 50


def alone(interval: int = 4) -> tuple[Cache, Request]:
    server = Server(random.Random(1), num_states=9, interval=interval, page_size=1)
    server.begin()
    return server.cache, server.requests[0]


def test_a_snapshot_is_wanted_before_any_step_can_come_by_and_until_one_has() -> None:
    cache, one = alone(interval=64)
    row, at = int32([one.lease.row]), one.computed
    cache.grow(row, int32([100]))
    wanted = []
    for start, slack in ((at, 0), (58, 3), (59, 4), (60, 8), (64, 0), (65, 0), (66, 62)):
        writes = cache.pass_states(row, int32([start]), int32([slack]))
        assert writes is not None
        assert writes.landmarks is not None
        wanted.append(int(writes.landmarks.positions[0]))
    # Behind 66 and 62 more lies 128, and before it the step at 65: so none has come by.
    assert wanted == [0, 0, 0, 64, 64, 0, 128]
    cache.check()
