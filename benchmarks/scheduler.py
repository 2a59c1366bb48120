"""Times the scheduler alone, with a model that costs nothing: planning and committing decode steps, admitting bursts.

python benchmarks/scheduler.py --steps 400
"""

import argparse
import statistics
import time

import numpy as np
from record import record
from tqdm import tqdm

from corymb.cache.cache import Cache
from corymb.cache.config import CacheConfig
from corymb.scheduler.config import Order, SchedulerConfig
from corymb.scheduler.door import Limits
from corymb.scheduler.messages import Generate, Sampling
from corymb.scheduler.plan import Sampled, StepPlan
from corymb.scheduler.scheduler import Scheduler

VOCAB_SIZE = 32_000
CONTEXT_LENGTH = 4096
ORDERS: list[Order] = ["fcfs", "lof", "random", "routing-key", "lpm", "dfs-weight", "hrrn", "shortest-prefill-first"]


def main() -> None:
    """Runs every case."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 64, 256])
    parser.add_argument("--waiting", type=int, default=128)
    options = parser.parse_args()
    decode = [(rows, page, window) for rows in options.rows for page in (1, 16) for window in (0, 512)]
    for rows, page_size, window in tqdm(decode, unit="decode"):
        measure_decode(rows, page_size, window, options.steps)
    for order in tqdm(ORDERS, unit="order"):
        measure_admission(order, options.waiting)


def measure_decode(rows: int, page_size: int, window: int, steps: int) -> None:
    """One token of every row a step, one step ahead of the results."""
    scheduler = scheduler_of(rows, page_size=page_size, window=window)
    for i in range(rows):
        scheduler.receive(request(i, num_prompt=600, max_new=3000))
    times = run(scheduler, steps)[steps // 10 :]
    params = {"rows": rows, "page_size": page_size, "window": window, "context": 600}
    for name, values in zip(("plan", "commit"), zip(*times, strict=True), strict=True):
        record("scheduler", f"{name}_ms_p50", 1e3 * statistics.median(values), "ms", **params)


def measure_admission(order: Order, waiting: int) -> None:
    """The steps that take in a queue whose prompts share beginnings, until it is empty."""
    scheduler = scheduler_of(waiting, schedule_policy=order)
    for i in range(waiting):
        scheduler.receive(request(i, num_prompt=500, max_new=3000, shared=i % 7 * 60))
    times = []
    while scheduler.stats().num_waiting:
        times += run(scheduler, 1)
    plans_ms = [1e3 * plan_s for plan_s, _ in times]
    for name, value in (("p50", statistics.median(plans_ms)), ("max", max(plans_ms))):
        record("scheduler", f"plan_ms_{name}", value, "ms", order=order, waiting=waiting, prompt=500)


def scheduler_of(rows: int, *, page_size: int = 1, window: int = 0, schedule_policy: Order = "fcfs") -> Scheduler:
    """A scheduler with memory for everything."""
    size = rows * CONTEXT_LENGTH // page_size * page_size + page_size
    cache = CacheConfig(
        num_full_tokens=size,
        num_sliding_tokens=size if window else 0,
        sliding_window=window,
        page_size=page_size,
        num_rows=rows + 1,
        context_length=CONTEXT_LENGTH,
    )
    config = SchedulerConfig(max_running_requests=rows, chunked_prefill_size=8192, schedule_policy=schedule_policy)
    return Scheduler(config, Cache(cache), Limits(VOCAB_SIZE, CONTEXT_LENGTH, frozenset({2})))


def request(number: int, *, num_prompt: int, max_new: int, shared: int = 0) -> Generate:
    """Random tokens after `shared` ones that other requests have, too."""
    own = np.random.default_rng(number).integers(3, VOCAB_SIZE, num_prompt - shared, np.int32)
    prompt = np.concatenate((np.full(shared, 7, np.int32), own))
    return Generate(f"request-{number:08}", prompt.tobytes(), Sampling(max_new_tokens=max_new))


def run(scheduler: Scheduler, steps: int) -> list[tuple[float, float]]:
    """Plans and commits so many steps; returns the seconds that each took."""
    times, before = [], None
    for _ in range(steps):
        started_s = time.perf_counter()
        plan = scheduler.plan()
        planned_s = time.perf_counter() - started_s
        started_s = time.perf_counter()
        if before is not None:
            scheduler.commit(before, sampled(before))
            scheduler.take_outputs()
        times.append((planned_s, time.perf_counter() - started_s))
        before = plan
    if before is not None:
        scheduler.commit(before, sampled(before))
    return times


def sampled(plan: StepPlan) -> Sampled:
    """The same token for every row that samples."""
    counts = plan.samples.astype(np.int32)
    return Sampled(np.full(counts.sum(), 11, np.int32), counts, 0.0)


if __name__ == "__main__":
    main()
