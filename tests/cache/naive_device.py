"""Does what a runner does with what the cache hands out: a wrong, lost, early freed or doubly owned slot shows as wrong
content."""

from collections import deque
from random import Random

import numpy as np
from naive_cache import Request

from corymb.cache.cache import Cache
from corymb.cache.config import CacheConfig
from corymb.cache.writes import HostCopies, HostCopy


class Device:
    """Tables and pools as a runner keeps them. A slot's content names the whole prefix that it was computed from.

    Copies to and from the host are done by chance at once, or no sooner than a step must come behind them.
    """

    def __init__(self, config: CacheConfig) -> None:
        self.config = config
        self.table = np.full((config.num_rows, config.context_length), -1)
        self.twins = np.zeros(config.num_full_tokens, np.int64)
        self.full = np.zeros(config.num_full_tokens, np.int64)
        self.sliding = np.zeros(config.num_sliding_tokens, np.int64)
        self.states = np.full(config.num_states, -1, np.int64)
        sizes = config.host
        self.lots: deque[HostCopies] = deque()  # not done yet
        self.chance = Random(4)
        self.is_late = False  # whether they are always done as late as they may be
        self.host = {
            "full": np.full(sizes.num_full_tokens if sizes else 0, -1, np.int64),
            "sliding": np.full(sizes.num_sliding_tokens if sizes else 0, -1, np.int64),
            "recurrent": np.full(sizes.num_states if sizes else 0, -1, np.int64),
        }

    def run(self, cache: Cache, requests: list[Request], widths: list[int], slots: np.ndarray) -> None:
        rows = np.array([request.lease.row for request in requests], np.int32)
        states = cache.take_state_writes(rows, np.array([r.computed for r in requests], np.int32) + np.int32(widths))
        writes, sliding = cache.take_table_writes(), cache.take_sliding_writes()
        self.take(cache.take_host_copies(slots, writes, states))
        self.table[writes.rows, writes.positions] = writes.slots
        if sliding is not None:
            self.twins[sliding.full] = sliding.sliding
        assert len(slots) == sum(widths)
        at = 0
        for request, width in zip(requests, widths, strict=True):
            stop = request.computed + width
            self.table[request.lease.row, request.computed : stop] = slots[at : at + width]
            at += width
        if states is not None:
            self.states[states.zero] = 0
            self.states[states.before_to] = self.states[states.before_from]
            self.change_states(requests, widths, states.slots)
            self.states[states.after_to] = self.states[states.after_from]
        for request, width in zip(requests, widths, strict=True):
            self.forward(request, width)

    def take(self, lot: HostCopies) -> None:
        self.lots.append(lot)
        self.do(lot.awaited if self.is_late else max(lot.awaited, self.chance.choice([0, lot.number - 1, lot.number])))

    def do(self, number: int) -> None:
        while self.lots and self.lots[0].number <= number:
            for copy in self.lots.popleft().copies:
                self.copy(copy)

    def copy(self, copy: HostCopy) -> None:
        pools = {"full": self.full, "sliding": self.sliding, "recurrent": self.states}
        source, target = pools[copy.pool], self.host[copy.pool]
        source, target = (source, target) if copy.to_host else (target, source)
        if copy.contents is not None:
            source = copy.contents.view(np.int64).ravel()
        assert len(set(copy.target.tolist())) == len(copy.source), "a slot is copied to twice"
        assert (copy.target > 0).all(), "padding is overwritten"
        target[copy.target] = source[copy.source]

    def change_states(self, requests: list[Request], widths: list[int], slots: np.ndarray) -> None:
        assert len(set(slots.tolist())) == len(requests), "two rows work in one state"
        for request, width, slot in zip(requests, widths, slots.tolist(), strict=True):
            assert slot > 0, "a row works in the padding state"
            contents = [0, *self.contents(request)]
            assert self.states[slot] == contents[request.computed], "a row goes on from another state"
            self.states[slot] = contents[request.computed + width]

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
