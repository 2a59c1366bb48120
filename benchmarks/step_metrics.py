"""Figures of a server's steps, from its own metrics, over the time in which its batch is full."""

import re
import threading
import urllib.request
from dataclasses import dataclass, field

HISTOGRAMS = {"plan": "step_plan_seconds", "commit": "step_commit_seconds", "forward": "step_forward_seconds"}
_LINE = re.compile(r"^corymb_(\w+?)(?:_(bucket|sum|count))?\{(.*)\} (\S+)$", re.MULTILINE)
_BOUND = re.compile(r'le="([^"]+)"')


@dataclass(slots=True)
class Counts:
    """A histogram's growth: observations up to each bound, their sum."""

    buckets: dict[float, float] = field(default_factory=dict)
    total: float = 0.0

    def add(self, other: "Counts", sign: int) -> None:
        """Adds, or takes away, another."""
        for bound, count in other.buckets.items():
            self.buckets[bound] = self.buckets.get(bound, 0.0) + sign * count
        self.total += sign * other.total

    @property
    def count(self) -> float:
        """Of observations."""
        return self.buckets.get(float("inf"), 0.0)

    def quantile(self, share: float) -> float:
        """Read off a straight line between the two bounds around it."""
        wanted, below, before = share * self.count, 0.0, 0.0
        for bound, count in sorted(self.buckets.items()):
            if count >= wanted:
                return (
                    below if bound == float("inf") else below + (bound - below) * (wanted - before) / (count - before)
                )
            below, before = bound, count
        return below


class StepWatch:
    """Reads /metrics twice a second while it is open; counts only between readings with a full batch."""

    def __init__(self, host: str, port: int, *, least_running: int) -> None:
        self._url = f"http://{host}:{port}/metrics"
        self._least_running = least_running
        self._growth = {name: Counts() for name in HISTOGRAMS}
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> "StepWatch":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def figures(self) -> dict[str, float]:
        """Milliseconds a step; empty where the batch was never full for long enough to tell."""
        found = {}
        for name, counts in self._growth.items():
            if counts.count:
                found[f"{name}_ms_p50"] = 1e3 * counts.quantile(0.5)
                found[f"{name}_ms_mean"] = 1e3 * counts.total / counts.count
        return found

    def _watch(self) -> None:
        before: dict[str, Counts] | None = None
        while not self._ended.wait(0.5):
            with urllib.request.urlopen(self._url, timeout=10) as answer:  # noqa: S310
                running, now = read(answer.read().decode())
            full = running >= self._least_running
            if full and before is not None:
                for name, counts in self._growth.items():
                    counts.add(now[name], 1)
                    counts.add(before[name], -1)
            before = now if full else None


def read(text: str) -> tuple[float, dict[str, Counts]]:
    """Running requests and the histograms of an exposition."""
    running, found = 0.0, {name: Counts() for name in HISTOGRAMS}
    names = {metric: name for name, metric in HISTOGRAMS.items()}
    for metric, part, labels, value in _LINE.findall(text):
        if metric == "running_requests":
            running = float(value)
        elif metric in names and part == "bucket":
            bound = _BOUND.search(labels)
            assert bound is not None, labels
            found[names[metric]].buckets[float(bound[1])] = float(value)
        elif metric in names and part == "sum":
            found[names[metric]].total = float(value)
    return running, found
