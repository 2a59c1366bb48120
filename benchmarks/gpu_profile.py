"""How much of the time between its first and last kernel a GPU is busy, and with what."""

import gzip
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


def busy_share(work: Callable[[], object], trace: Path | None = None) -> Busy:
    """Profiles `work`; `trace`: where Chrome's file of it is left, compressed."""
    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CUDA]) as profiler:
        work()
        torch.cuda.synchronize()
    with tempfile.NamedTemporaryFile(suffix=".json") as file:
        profiler.export_chrome_trace(file.name)
        text = Path(file.name).read_text()
    if trace is not None:
        trace.parent.mkdir(parents=True, exist_ok=True)
        trace.write_bytes(gzip.compress(text.encode()))
    events = json.loads(text)["traceEvents"]
    spans = [(e["ts"], e["ts"] + e["dur"], e["name"]) for e in events if e.get("cat") in DEVICE_WORK]
    spans.sort()
    gaps = _gaps(spans)
    return Busy(1.0 - sum(gap.share for gap in gaps), _by_name(spans), gaps)


def show(busy: Busy) -> None:
    """Prints the kernels that take the longest, and where nothing runs."""
    for kernel in busy.kernels[:14]:
        print(f"    {kernel.share:6.1%} {kernel.mean_us:9.1f} µs × {kernel.count:5d}  {kernel.name[:90]}")
    for gap in busy.gaps[:8]:
        print(f"    idle {gap.share:6.2%} {gap.mean_us:7.2f} µs × {gap.count:5d}  {gap.before[:40]} → {gap.after[:40]}")


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
