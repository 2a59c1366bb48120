"""How much of the time between its first and last kernel a GPU is busy, and with what."""

import json
import tempfile
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch.profiler import ProfilerActivity, profile

DEVICE_WORK = {"kernel", "gpu_memcpy", "gpu_memset"}


@dataclass(frozen=True, slots=True)
class KernelTime:
    """All launches of one kernel."""

    name: str
    count: int
    mean_us: float
    share: float  # of all device work


@dataclass(frozen=True, slots=True)
class Busy:
    """What a profile shows."""

    share: float
    kernels: list[KernelTime]  # longest first


def busy_share(work: Callable[[], object]) -> Busy:
    """Profiles `work`."""
    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CUDA]) as profiler:
        work()
        torch.cuda.synchronize()
    with tempfile.NamedTemporaryFile(suffix=".json") as file:
        profiler.export_chrome_trace(file.name)
        events = json.loads(Path(file.name).read_text())["traceEvents"]
    spans = [(e["ts"], e["ts"] + e["dur"], e["name"]) for e in events if e.get("cat") in DEVICE_WORK]
    return Busy(_covered([(begin, end) for begin, end, _ in spans]), _by_name(spans))


def _covered(spans: list[tuple[float, float]]) -> float:
    """The union of the spans over the time from the first to the last."""
    spans.sort()
    covered, reached = 0.0, spans[0][0]
    for begin, end in spans:
        covered += max(0.0, end - max(begin, reached))
        reached = max(reached, end)
    return covered / (reached - spans[0][0])


def _by_name(spans: list[tuple[float, float, str]]) -> list[KernelTime]:
    durations: dict[str, list[float]] = defaultdict(list)
    for begin, end, name in spans:
        durations[name].append(end - begin)
    total = sum(map(sum, durations.values()))
    times = [KernelTime(name, len(all_), sum(all_) / len(all_), sum(all_) / total) for name, all_ in durations.items()]
    return sorted(times, key=lambda time: -time.share)
