"""Request traces: who asks what and when, made from a seed. Tokens are random; what is shared is stated."""

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

Int32 = NDArray[np.int32]
VOCAB_SIZE = 32_000


@dataclass(frozen=True)
class Turn:
    """One request of a conversation: its new tokens come behind all before it, answers included."""

    pause_s: float  # after the answer before it; after the trace's begin for a first turn
    new_ids: Int32
    num_outputs: int


@dataclass(frozen=True)
class Trace:
    """Conversations, and the tokens that the pool has for them."""

    name: str
    pool: int
    conversations: list[list[Turn]] = field(repr=False)

    @property
    def num_requests(self) -> int:
        """Turns of all conversations."""
        return sum(map(len, self.conversations))


def agents(scale: float) -> Trace:
    """Agents behind one system prompt: a tool answers after seconds, with some hundred tokens, a person after a minute
    or much later, with some dozen."""
    random = np.random.default_rng(1)
    system = _ids(random, 2000)
    starts = _arrivals(random, count=round(200 * scale), per_s=0.4)
    return Trace("agents", 300_000, [list(_agent(random, at, system)) for at in starts])


def _agent(random: np.random.Generator, at: float, system: Int32) -> Iterator[Turn]:
    pause_s, new_ids = at, np.concatenate((system, _ids(random, random.integers(100, 500))))
    for _ in range(int(random.integers(8, 25))):
        yield Turn(pause_s, new_ids, int(random.integers(20, 100)))
        if random.random() < 0.75:
            pause_s, new_ids = 0.5 + random.exponential(3), _ids(random, random.integers(100, 700))
        else:
            pause_s, new_ids = float(random.lognormal(np.log(40), 0.8)), _ids(random, random.integers(20, 80))


def hot_prefixes(scale: float) -> Trace:
    """Short questions behind ten long beginnings, some asked more often than others, among one-off long documents."""
    random = np.random.default_rng(2)
    beginnings = [_ids(random, 4000) for _ in range(10)]
    shares = 1 / np.arange(1, 11)
    requests = []
    for at in _arrivals(random, count=round(2000 * scale), per_s=2.0):
        if random.random() < 0.3:
            ids = _ids(random, random.integers(6000, 14_000))
        else:
            beginning = beginnings[random.choice(10, p=shares / shares.sum())]
            ids = np.concatenate((beginning, _ids(random, random.integers(20, 200))))
        requests.append([Turn(at, ids, int(random.integers(10, 60)))])
    return Trace("hot prefixes", 80_000, requests)


def uniform(scale: float) -> Trace:
    """Questions behind 200 beginnings, all equally likely: nothing that has happened says what comes next."""
    random = np.random.default_rng(3)
    beginnings = [_ids(random, 2000) for _ in range(200)]
    requests = []
    for at in _arrivals(random, count=round(3000 * scale), per_s=6.0):
        ids = np.concatenate((beginnings[random.integers(200)], _ids(random, random.integers(20, 200))))
        requests.append([Turn(at, ids, int(random.integers(10, 60)))])
    return Trace("uniform", 220_000, requests)


TRACES = (agents, hot_prefixes, uniform)


def _ids(random: np.random.Generator, count: int) -> Int32:
    return random.integers(3, VOCAB_SIZE, count, np.int32)


def _arrivals(random: np.random.Generator, *, count: int, per_s: float) -> list[float]:
    arrivals: list[float] = np.cumsum(random.exponential(1 / per_s, count)).tolist()
    return arrivals
