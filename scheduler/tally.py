"""Counts what happens, for the metrics endpoint."""

from collections import Counter, deque

from corymb.cache.host import HostUsage
from corymb.scheduler.ledger import Ledger
from corymb.scheduler.messages import Stats, StorageStats
from corymb.scheduler.plan import Blocks, Int32
from corymb.scheduler.ratio import NewTokenRatio

MAX_TIMES = 4096  # step times kept between two snapshots


class Tally:
    """Counters only grow; times are those since the last snapshot."""

    def __init__(self) -> None:
        """Starts at nothing."""
        self.num_steps = 0
        self.num_retractions = 0
        self.num_preemptions = 0
        self.num_prefill_tokens = 0  # computed; also the clock that hrrn ages requests by
        self.num_cached_tokens = 0
        self.hit_tokens: Counter[str] = Counter()  # by component
        self.num_generated_tokens = 0
        self.num_aborted = 0
        self.num_draft_steps = 0
        self.verified: Counter[int] = Counter()  # drafts by place
        self.accepted: Counter[int] = Counter()
        self.windows: Counter[int] = Counter()
        self.num_blocks = 0  # whose length is known, or bounded
        self.block_tokens = (0.0, 0.0)  # what they would have given at least, and at most
        self._plan_s: deque[float] = deque(maxlen=MAX_TIMES)
        self._commit_s: deque[float] = deque(maxlen=MAX_TIMES)
        self._forward_s: deque[float] = deque(maxlen=MAX_TIMES)
        self._foreseen: deque[tuple[float, float]] = deque(maxlen=MAX_TIMES)

    def planned(self, seconds: float) -> None:
        """A step was planned."""
        self.num_steps += 1
        self._plan_s.append(seconds)

    def committed(self, seconds: float, forward_s: float) -> None:
        """A step's results were processed."""
        self._commit_s.append(seconds)
        self._forward_s.append(forward_s)

    def speculated(self, verified: Int32, accepted: Int32) -> None:
        """A step verified drafts of its rows [R], and so many were accepted of each."""
        drafted = verified > 0
        self.num_draft_steps += int(drafted.sum())
        self.windows.update(verified[drafted].tolist())
        for place in range(int(verified.max())):
            self.verified[place] += int((verified > place).sum())
            self.accepted[place] += int((accepted > place).sum())

    def estimated(self, blocks: Blocks) -> None:
        """So much became known of whole blocks."""
        lower, upper = self.block_tokens
        self.num_blocks += blocks.count
        self.block_tokens = lower + blocks.lower, upper + blocks.upper

    def foreseen(self, expected_s: float, took_s: float) -> None:
        """A step was expected to take so long when its budget was chosen, and took so long."""
        self._foreseen.append((expected_s, took_s))

    def take_foreseen(self) -> list[tuple[float, float]]:
        """Seconds that steps were expected to take, and took, since the last call."""
        pairs = list(self._foreseen)
        self._foreseen.clear()
        return pairs

    def take_times(self) -> tuple[list[float], list[float], list[float]]:
        """Planning, processing and forward times since the last call."""
        times = list(self._plan_s), list(self._commit_s), list(self._forward_s)
        self._plan_s.clear()
        self._commit_s.clear()
        self._forward_s.clear()
        return times


def stats_of(tally: Tally, ledger: Ledger, ratio: NewTokenRatio) -> Stats:
    """A snapshot for the metrics endpoint; takes the step times out of the tally."""
    usage, components = ledger.cache.usage(), ledger.cache.components()
    plan_s, commit_s, forward_s = tally.take_times()
    host = ledger.cache.host.usage() if ledger.cache.host else None
    return Stats(
        num_running=ledger.num_seated,
        num_waiting=len(ledger.queue),
        pool_used={name: pool.leased for name, pool in usage.items()},
        pool_evictable={name: pool.evictable for name, pool in usage.items()},
        pool_total={name: pool.total for name, pool in usage.items()},
        tree_evictable={name: each.evictable for name, each in components.items()},
        tree_protected={name: each.protected for name, each in components.items()},
        tree_tombstones={name: each.num_tombstones for name, each in components.items()},
        tree_nodes=ledger.cache.tree.num_nodes,
        hit_tokens={name: tally.hit_tokens[name] for name in components},
        num_steps=tally.num_steps,
        num_retractions=tally.num_retractions,
        num_preemptions=tally.num_preemptions,
        num_prefill_tokens=tally.num_prefill_tokens,
        num_cached_tokens=tally.num_cached_tokens,
        num_generated_tokens=tally.num_generated_tokens,
        num_aborted=tally.num_aborted,
        new_token_ratio=ratio.value,
        host_total=host.total if host else {},
        host_used=host.used if host else {},
        host_stored=host.moved.stored if host else {},
        host_loaded=host.moved.loaded if host else {},
        host_bytes={"stored": host.stored_bytes, "loaded": host.loaded_bytes} if host else {},
        storage=_storage_stats(host),
        draft_steps=tally.num_draft_steps,
        drafts_verified=_listed(tally.verified),
        drafts_accepted=[tally.accepted[place] for place in range(len(tally.verified))],
        draft_windows=_listed(tally.windows),
        foreseen_s=tally.take_foreseen(),
        blocks=tally.num_blocks,
        block_tokens={"lower": tally.block_tokens[0], "upper": tally.block_tokens[1]},
        plan_s=plan_s,
        commit_s=commit_s,
        forward_s=forward_s,
    )


def _storage_stats(host: HostUsage | None) -> StorageStats:
    if host is None or host.storage is None:
        return StorageStats()
    storage = host.storage
    return StorageStats(
        used_bytes=storage.used_bytes,
        max_bytes=storage.max_bytes,
        loaded_tokens=host.moved.restored,
        copied_bytes=storage.num_bytes,
        seconds=storage.seconds,
        failures=storage.failures,
    )


def _listed(counts: Counter[int]) -> list[int]:
    """By number, from 0 to the largest."""
    return [counts[number] for number in range(max(counts, default=-1) + 1)]
