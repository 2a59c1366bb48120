"""What Prometheus scrapes. Observing costs well under a microsecond; the text is made when it is asked for.

Label values come from the configuration and from fixed lists, never from a request.
"""

import os
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.metrics_core import Metric

from corymb.scheduler.messages import Stats, StorageStats

GRAMMAR_FAILURES = ("invalid", "too_complex")
FINISH_REASONS = ("stop", "length", "abort", "error")

_REQUEST_S = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 20, 40, 80, 160, 320, 640, 1280, 2400)
_TOKEN_S = (0.001, 0.002, 0.004, 0.008, 0.015, 0.025, 0.035, 0.05, 0.075, 0.1, 0.15, 0.25, 0.5, 1, 2, 4, 8)
# Fine below 2 ms: that is what planning a step and taking its results may cost beside a GPU.
_SHORT_S = (0.00005, 0.0001, 0.0002, 0.0003, 0.0004, 0.0005, 0.0006, 0.0008, 0.001, 0.0012, 0.0015, 0.002, 0.003)
_STEP_S = (*_SHORT_S, 0.005, 0.0075, 0.01, 0.015, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 10, 60)
_ERRORS = (0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.15, 0.25, 0.5, 1, 2)
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


class Distribution:
    """A histogram's counts."""

    __slots__ = ("_bounds", "_counts", "_sum")

    def __init__(self, bounds: Iterable[float]) -> None:
        self._bounds = tuple(float(bound) for bound in bounds)
        self._counts = [0] * (len(self._bounds) + 1)
        self._sum = 0.0

    def observe(self, value: float, times: int = 1) -> None:
        """Counts `value`, `times` times."""
        self._counts[bisect_left(self._bounds, value)] += times
        self._sum += value * times

    def buckets(self) -> list[tuple[str, float]]:
        """Cumulative counts by upper bound."""
        total, rows = 0, []
        for bound, count in zip((*map(repr, self._bounds), "+Inf"), self._counts, strict=True):
            total += count
            rows.append((bound, float(total)))
        return rows

    @property
    def sum(self) -> float:
        """Of all observed values."""
        return self._sum


class Metrics:
    """Owns the registry. Written by the main process's event loop only."""

    def __init__(self, model_name: str) -> None:
        self._labels = {"model_name": model_name}
        self._counts = dict.fromkeys(_COUNTERS, 0)
        self._failed_grammars = dict.fromkeys(GRAMMAR_FAILURES, 0)
        self._grammars = 0, 0
        self._finished = dict.fromkeys(FINISH_REASONS, 0)
        self._distributions = {name: Distribution(bounds) for name, (_, bounds) in _HISTOGRAMS.items()}
        self._inter_token = self._distributions["inter_token_latency_seconds"]
        self._stats: Stats | None = None
        self._startup_s: dict[str, float] = {}
        self._processes: dict[str, int] = {}
        self._registry = CollectorRegistry(auto_describe=False)
        self._registry.register(self)

    # What happens to requests.

    def request_started(self) -> None:
        """An HTTP request for tokens was accepted; once, however many samples or prompts it has."""
        self._counts["requests"] += 1

    def prompt(self, num_tokens: int, num_cached: int) -> None:
        """A prompt was computed, so much of it taken from the cache."""
        self._counts["prompt_tokens"] += num_tokens
        self._counts["cached_tokens"] += num_cached

    def first_tokens(self, num_tokens: int, after_s: float, queue_s: float) -> None:
        """A request's first tokens came."""
        self._counts["generation_tokens"] += num_tokens
        self._distributions["time_to_first_token_seconds"].observe(after_s)
        self._distributions["queue_time_seconds"].observe(queue_s)

    def tokens(self, num_tokens: int, after_s: float) -> None:
        """Further tokens came, so long after the ones before: tokens that come together share the interval."""
        self._counts["generation_tokens"] += num_tokens
        self._inter_token.observe(after_s / num_tokens, num_tokens)

    def finished(self, reason: str, after_s: float) -> None:
        """A request ended."""
        self._finished[reason] += 1
        self._distributions["e2e_request_latency_seconds"].observe(after_s)

    # Grammars.

    def grammar_compiled(self, seconds: float) -> None:
        """A grammar is ready, so long after it was asked for."""
        self._counts["grammars_compiled"] += 1
        self._distributions["grammar_compilation_seconds"].observe(seconds)

    def grammar_failed(self, reason: str) -> None:
        """A grammar cannot be followed."""
        self._failed_grammars[reason] += 1

    def grammars_kept(self, number: int, size_bytes: int) -> None:
        """So many grammars are kept compiled."""
        self._grammars = number, size_bytes

    # What the processes say.

    def scheduler_stats(self, stats: Stats) -> None:
        """The scheduler's latest snapshot."""
        self._stats = stats
        for name, values in (("plan", stats.plan_s), ("commit", stats.commit_s), ("forward", stats.forward_s)):
            distribution = self._distributions[f"step_{name}_seconds"]
            for value in values:
                distribution.observe(value)
        for expected_s, took_s in stats.foreseen_s:
            self._distributions["step_predicted_seconds"].observe(expected_s)
            self._distributions["step_actual_seconds"].observe(took_s)
            self._distributions["step_prediction_error"].observe(abs(expected_s - took_s) / took_s)

    def startup_stage(self, stage: str, seconds: float) -> None:
        """A stage of the start-up took so long."""
        self._startup_s[stage] = self._startup_s.get(stage, 0.0) + seconds

    def processes(self, pids: Mapping[str, int]) -> None:
        """Whose memory to report."""
        self._processes = dict(pids)

    # Exposition.

    def exposition(self) -> bytes:
        """Everything in Prometheus' text format (`CONTENT_TYPE_LATEST` of prometheus_client)."""
        return generate_latest(self._registry)

    def collect(self) -> Iterator[Metric]:
        """Called by the registry."""
        for name, text in _COUNTERS.items():
            yield self._counter(name, text, self._counts[name])
        finished = CounterMetricFamily("corymb_requests_finished", _FINISHED_HELP, labels=[*self._labels, "reason"])
        for reason, count in self._finished.items():
            finished.add_metric([*self._labels.values(), reason], count)
        yield finished
        failed = CounterMetricFamily("corymb_grammars_failed", _FAILED_HELP, labels=[*self._labels, "reason"])
        for reason, count in self._failed_grammars.items():
            failed.add_metric([*self._labels.values(), reason], count)
        yield failed
        yield self._gauge("grammars_kept", "Compiled grammars that are kept.", self._grammars[0])
        yield self._gauge("grammars_kept_bytes", "Their size as they travel.", self._grammars[1])
        for name, (text, _) in _HISTOGRAMS.items():
            yield self._histogram(name, text)
        yield from self._collect_scheduler(self._stats or _NO_STATS)
        yield self._by_label("startup_seconds", "Seconds that a stage of the start-up took.", "stage", self._startup_s)
        memory = {name: _resident_bytes(pid) for name, pid in self._processes.items()}
        yield self._by_label("process_resident_memory_bytes", "Resident memory of each process.", "process", memory)

    def _collect_scheduler(self, stats: Stats) -> Iterator[Metric]:
        for name, (text, field) in _SCHEDULER_COUNTERS.items():
            yield self._counter(name, text, getattr(stats, field))
        for name, (text, field) in _SCHEDULER_GAUGES.items():
            yield self._gauge(name, text, getattr(stats, field))
        usage = max((stats.pool_used[pool] / total for pool, total in stats.pool_total.items() if total), default=0.0)
        yield self._gauge("token_usage", "Share of the fullest pool that requests hold.", usage)
        prefill = stats.num_cached_tokens + stats.num_prefill_tokens
        rate = stats.num_cached_tokens / prefill if prefill else 0.0
        yield self._gauge("cache_hit_rate", "Share of prompt tokens taken from the cache since the start.", rate)
        yield self._by_label("pool_used_tokens", "Tokens that requests hold.", "pool", stats.pool_used)
        yield self._by_label(
            "pool_evictable_tokens", "Cached tokens that no request holds.", "pool", stats.pool_evictable
        )
        yield self._by_label("pool_capacity_tokens", "Size of each pool.", "pool", stats.pool_total)
        for name, (text, values) in _tree_gauges(stats).items():
            yield self._by_label(name, text, "component", values)
        yield self._gauge("tree_nodes", "Nodes of the cache's tree.", stats.tree_nodes)
        yield self._counter_by("tree_hit_tokens", _HITS_HELP, "component", stats.hit_tokens)
        yield self._by_label("host_capacity_tokens", "Size of each pool on the host.", "pool", stats.host_total)
        yield self._by_label("host_used_tokens", "What each pool on the host holds.", "pool", stats.host_used)
        yield from self._collect_speculation(stats)
        none = {"full": 0}
        yield self._counter_by("host_stored_tokens", "Copied to the host.", "pool", stats.host_stored or none)
        yield self._counter_by(
            "host_loaded_tokens", "Found on the host and copied back.", "pool", stats.host_loaded or none
        )
        yield from self._collect_storage(stats.storage)
        moved = stats.host_bytes or {"stored": 0, "loaded": 0}
        yield self._counter_by("host_copied_bytes", "Copied between device and host.", "direction", moved)

    def _collect_storage(self, storage: StorageStats) -> Iterator[Metric]:
        yield self._gauge("storage_used_bytes", "What the cache's files take.", storage.used_bytes)
        yield self._gauge("storage_capacity_bytes", "Their bound.", storage.max_bytes)
        help_text = "Found in files and given to requests."
        yield self._counter_by("storage_loaded_tokens", help_text, "pool", storage.loaded_tokens)
        by_direction: list[tuple[str, str, Mapping[str, float]]] = [
            ("storage_copied_bytes", "Written to files and read from them.", storage.copied_bytes),
            ("storage_seconds", "Spent on writing files and reading them.", storage.seconds),
            ("storage_failures", "Files that could not be written or read.", storage.failures),
        ]
        for name, text, values in by_direction:
            yield self._counter_by(name, text, "direction", values)

    def _collect_speculation(self, stats: Stats) -> Iterator[Metric]:
        def by_number(counts: Sequence[int], first: int) -> dict[str, int]:
            return {str(number): count for number, count in enumerate(counts, first)} or {"1": 0}

        yield self._counter("draft_steps", "Steps of a request that verified drafts of it.", stats.draft_steps)
        verified, accepted = by_number(stats.drafts_verified, 1), by_number(stats.drafts_accepted, 1)
        yield self._counter_by("drafts_verified", "Drafts verified, by place in their run.", "place", verified)
        yield self._counter_by("drafts_accepted", "Drafts accepted, by place in their run.", "place", accepted)
        windows = {size: count for size, count in by_number(stats.draft_windows, 0).items() if size != "0"}
        yield self._counter_by(
            "draft_windows", "Steps of a request, by drafts verified.", "drafts", windows or {"1": 0}
        )
        yield self._counter("draft_blocks", "Blocks of drafts of known or estimated length.", stats.blocks)
        bounds = stats.block_tokens or {"lower": 0.0, "upper": 0.0}
        yield self._counter_by(
            "draft_block_tokens", "What these blocks would have given, had all been verified.", "bound", bounds
        )
        text = "Tokens that such a step gave on average since the start."
        length = GaugeMetricFamily("corymb_accept_length", text, labels=list(self._labels))
        if stats.draft_steps:
            length.add_metric(list(self._labels.values()), 1 + sum(stats.drafts_accepted) / stats.draft_steps)
        yield length

    def _counter(self, name: str, text: str, value: float) -> Metric:
        family = CounterMetricFamily(f"corymb_{name}", text, labels=list(self._labels))
        family.add_metric(list(self._labels.values()), value)
        return family

    def _gauge(self, name: str, text: str, value: float) -> Metric:
        family = GaugeMetricFamily(f"corymb_{name}", text, labels=list(self._labels))
        family.add_metric(list(self._labels.values()), value)
        return family

    def _by_label(self, name: str, text: str, label: str, values: Mapping[str, float]) -> Metric:
        family = GaugeMetricFamily(f"corymb_{name}", text, labels=[*self._labels, label])
        for key, value in values.items():
            family.add_metric([*self._labels.values(), key], value)
        return family

    def _counter_by(self, name: str, text: str, label: str, values: Mapping[str, float]) -> Metric:
        family = CounterMetricFamily(f"corymb_{name}", text, labels=[*self._labels, label])
        for key, value in values.items():
            family.add_metric([*self._labels.values(), key], value)
        return family

    def _histogram(self, name: str, text: str) -> Metric:
        distribution = self._distributions[name]
        family = HistogramMetricFamily(f"corymb_{name}", text, labels=list(self._labels))
        family.add_metric(list(self._labels.values()), distribution.buckets(), distribution.sum)
        return family


_COUNTERS = {
    "requests": "HTTP requests for tokens that were accepted.",
    "prompt_tokens": "Prompt tokens of requests that gave a token, each prompt once.",
    "cached_tokens": "Prompt tokens that came from the cache.",
    "generation_tokens": "Tokens generated for clients.",
    "grammars_compiled": "Schemas and grammars that were compiled.",
}
_FAILED_HELP = "Grammars that cannot be followed, by reason."
_FINISHED_HELP = "Generations that ended, by reason."
_HITS_HELP = "Prompt tokens that the cache would have given, had this component alone decided."
_HISTOGRAMS: dict[str, tuple[str, tuple[float, ...]]] = {
    "time_to_first_token_seconds": ("From arrival to the first token.", _REQUEST_S),
    "inter_token_latency_seconds": ("Between tokens of a request; tokens that come together share it.", _TOKEN_S),
    "e2e_request_latency_seconds": ("From arrival to the end.", _REQUEST_S),
    "grammar_compilation_seconds": ("From asking for a grammar to its use.", _REQUEST_S),
    "queue_time_seconds": ("From arrival to the first launch.", _REQUEST_S),
    "step_plan_seconds": ("Planning of a step.", _STEP_S),
    "step_commit_seconds": ("Processing of a step's results.", _STEP_S),
    "step_forward_seconds": ("A step on the device.", _STEP_S),
    "step_predicted_seconds": ("What a step was expected to take when its drafts were budgeted.", _STEP_S),
    "step_actual_seconds": ("What the same steps took.", _STEP_S),
    "step_prediction_error": ("How far off that was, as a share of what it took.", _ERRORS),
}
_SCHEDULER_COUNTERS = {
    "scheduler_steps": ("Steps launched.", "num_steps"),
    "prefill_tokens": ("Prompt tokens computed.", "num_prefill_tokens"),
    "retractions": ("Running requests put back for lack of room.", "num_retractions"),
    "preemptions": ("Running requests put back for others of higher priority.", "num_preemptions"),
    "requests_aborted": ("Generations ended by their client or an operator.", "num_aborted"),
}
_SCHEDULER_GAUGES = {
    "running_requests": ("Requests in the batch.", "num_running"),
    "queued_requests": ("Requests that wait for room.", "num_waiting"),
    "new_token_ratio": ("Share of their limit that requests are expected to generate.", "new_token_ratio"),
}
_NO_STATS = Stats(
    num_running=0,
    num_waiting=0,
    pool_used={},
    pool_evictable={},
    pool_total={},
    tree_evictable={},
    tree_protected={},
    tree_tombstones={},
    tree_nodes=0,
    hit_tokens={"full": 0},
    num_steps=0,
    num_retractions=0,
    num_preemptions=0,
    num_prefill_tokens=0,
    num_cached_tokens=0,
    num_generated_tokens=0,
    num_aborted=0,
    new_token_ratio=0.0,
)


def _tree_gauges(stats: Stats) -> dict[str, tuple[str, Mapping[str, float]]]:
    used = {name: count + stats.tree_protected[name] for name, count in stats.tree_evictable.items()}
    return {
        "tree_used_tokens": ("Tokens, or recurrent states, that the tree holds.", used),
        "tree_evictable_tokens": ("Of these, those that may go.", stats.tree_evictable),
        "tree_protected_tokens": ("Of these, those that running requests pin.", stats.tree_protected),
        "tree_tombstones": ("Nodes that have lost the component.", stats.tree_tombstones),
    }


def _resident_bytes(pid: int) -> int:
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * _PAGE_BYTES
    except (OSError, IndexError):  # gone, or no /proc here
        return 0
