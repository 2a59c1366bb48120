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
class Gap:
    """All idle times between one kernel and another."""

    before: str
    after: str
    count: int
    mean_us: float
    share: float  # of all time


@dataclass(frozen=True, slots=True)
class Busy:
    """What a profile shows."""

    share: float
    kernels: list[KernelTime]  # longest first
    gaps: list[Gap]  # largest sum first


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
    spans.sort()
    gaps = _gaps(spans)
    return Busy(1.0 - sum(gap.share for gap in gaps), _by_name(spans), gaps)


def _gaps(spans: list[tuple[float, float, str]]) -> list[Gap]:
    """What the union of the spans, in order, leaves free between the first and the last."""
    idle: dict[tuple[str, str], list[float]] = defaultdict(list)
    reached, latest = spans[0][0], ""
    for begin, end, name in spans:
        if begin > reached:
            idle[latest, name].append(begin - reached)
        if end > reached:
            reached, latest = end, name
    whole = reached - spans[0][0]
    gaps = [Gap(*pair, len(all_), sum(all_) / len(all_), sum(all_) / whole) for pair, all_ in idle.items()]
    return sorted(gaps, key=lambda gap: -gap.share)


def _by_name(spans: list[tuple[float, float, str]]) -> list[KernelTime]:
    durations: dict[str, list[float]] = defaultdict(list)
    for begin, end, name in spans:
        durations[name].append(end - begin)
    total = sum(map(sum, durations.values()))
    times = [KernelTime(name, len(all_), sum(all_) / len(all_), sum(all_) / total) for name, all_ in durations.items()]
    return sorted(times, key=lambda time: -time.share)
