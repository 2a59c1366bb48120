"""Replays request traces through the real scheduler and tree under each eviction order; the model costs nothing, and
the clock moves by what a step would have taken.

python benchmarks/eviction.py                   records every order on every trace, prints a table, draws eviction.svg
python benchmarks/eviction.py --scale 0.05 --dry
"""

import argparse
import heapq
from collections.abc import Sequence
from dataclasses import dataclass
from typing import get_args

import numpy as np
from eviction_plot import draw
from record import record
from tqdm import tqdm
from traces import TRACES, VOCAB_SIZE, Trace

from corymb.cache.cache import Cache
from corymb.cache.config import CacheConfig, Eviction
from corymb.scheduler.config import SchedulerConfig
from corymb.scheduler.door import Limits
from corymb.scheduler.messages import Generate, Output, Sampling
from corymb.scheduler.plan import Sampled, StepPlan
from corymb.scheduler.scheduler import Scheduler

# An 8B model on one large GPU, roughly: what a step takes at least, for each prompt token, and for each decoding row.
STEP_S, PROMPT_TOKEN_S, ROW_S = 0.006, 1 / 20_000, 0.00002
ANSWER = 11  # the token that the model always gives
CONTEXT_LENGTH = 32_768
MAX_ROWS = 64


@dataclass(frozen=True)
class Figures:
    """What came of one trace under one order."""

    hit_rate: float  # prompt tokens found in the cache, of all
    ttft_ms_p50: float
    ttft_ms_p99: float


def main() -> None:
    """Every trace under every order."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--scale", type=float, default=1.0, help="share of each trace's requests")
    parser.add_argument("--slack", type=int, nargs="+", default=[1024], help="tokens, for tlru")
    parser.add_argument("--traces", nargs="+", default=[make.__name__ for make in TRACES])
    parser.add_argument("--orders", nargs="+", default=get_args(Eviction))
    parser.add_argument("--dry", action="store_true", help="records and draws nothing")
    options = parser.parse_args()
    found: dict[str, dict[str, Figures]] = {}
    for trace in [make(options.scale) for make in TRACES if make.__name__ in options.traces]:
        cases = [(order, slack) for order in options.orders for slack in (options.slack if order == "tlru" else [0])]
        for order, slack in tqdm(cases, unit="order", desc=trace.name):
            name = f"tlru {slack}" if order == "tlru" else order
            found.setdefault(trace.name, {})[name] = _measure(trace, order, slack, dry=options.dry)
    print(table(found))
    if not options.dry:
        draw({trace: {name: vars(figures) for name, figures in rows.items()} for trace, rows in found.items()})


def _measure(trace: Trace, order: Eviction, slack: int, *, dry: bool) -> Figures:
    figures = Replay(trace, order, slack).run()
    if not dry:
        params = {"trace": trace.name, "order": order, "slack": slack, "requests": trace.num_requests}
        for metric, value in vars(figures).items():
            record("eviction", metric, value, metric.split("_")[1] if "ms" in metric else "ratio", **params)
    return figures


class Replay:
    """One trace against one scheduler. Owns the modelled clock."""

    def __init__(self, trace: Trace, order: Eviction, slack: int) -> None:
        self._trace = trace
        self._now_s = 0.0
        cache = CacheConfig(
            num_full_tokens=trace.pool,
            num_rows=MAX_ROWS + 1,
            context_length=CONTEXT_LENGTH,
            eviction=order,
            eviction_slack=slack,
        )
        config = SchedulerConfig(max_running_requests=MAX_ROWS, chunked_prefill_size=8192)
        limits = Limits(VOCAB_SIZE, CONTEXT_LENGTH, frozenset({2}))
        self._scheduler = Scheduler(config, Cache(cache), limits, clock=lambda: self._now_s)
        self._due = [(turns[0].pause_s, number) for number, turns in enumerate(trace.conversations)]
        heapq.heapify(self._due)
        self._texts = [np.empty(0, np.int32) for _ in trace.conversations]
        self._turns = [0] * len(trace.conversations)
        self._arrived_s: dict[int, float] = {}  # of open requests without a token yet
        self._ttft_s: list[float] = []
        self._num_prompt = self._num_cached = 0

    def run(self) -> Figures:
        """Until every turn has its answer."""
        while self._due or not self._scheduler.is_idle:
            if self._scheduler.is_idle:
                self._now_s = max(self._now_s, self._due[0][0])
            while self._due and self._due[0][0] <= self._now_s:
                self._ask(*heapq.heappop(self._due))
            plan = self._scheduler.plan()
            assert plan is not None, "open requests, and nothing to compute"
            self._now_s += _cost_s(plan)
            counts = plan.samples.astype(np.int32)
            self._scheduler.commit(plan, Sampled(np.full(counts.sum(), ANSWER, np.int32), counts, 0.0))
            for output in self._scheduler.take_outputs():
                self._hear(output)
        assert len(self._ttft_s) == self._trace.num_requests
        p50, p99 = 1e3 * np.percentile(self._ttft_s, (50, 99))
        return Figures(self._num_cached / self._num_prompt, float(p50), float(p99))

    def _ask(self, due_s: float, number: int) -> None:
        turn = self._trace.conversations[number][self._turns[number]]
        self._texts[number] = np.concatenate((self._texts[number], turn.new_ids))
        self._arrived_s[number] = due_s
        sampling = Sampling(max_new_tokens=turn.num_outputs, ignore_eos=True)
        self._scheduler.receive(Generate(str(number), self._texts[number].tobytes(), sampling, arrived_s=due_s))

    def _hear(self, output: Output) -> None:
        number = int(output.rid)
        answer = np.array(output.token_ids, np.int32)
        self._texts[number] = np.concatenate((self._texts[number], answer))
        if len(answer) and number in self._arrived_s:
            self._ttft_s.append(self._now_s - self._arrived_s.pop(number))
            self._num_prompt += output.num_prompt_tokens
            self._num_cached += output.num_cached_tokens
        if output.finish is None:
            return
        assert output.finish.reason == "length", output.finish
        self._turns[number] += 1
        turns = self._trace.conversations[number]
        if self._turns[number] < len(turns):
            heapq.heappush(self._due, (self._now_s + turns[self._turns[number]].pause_s, number))


def _cost_s(plan: StepPlan) -> float:
    num_prompt = plan.num_tokens - int((plan.widths == 1).sum())
    return STEP_S + num_prompt * PROMPT_TOKEN_S + plan.num_rows * ROW_S


def table(found: dict[str, dict[str, Figures]]) -> str:
    """For people."""
    rows: Sequence[str] = [
        f"| {trace} | {name} | {each.hit_rate:.1%} | {each.ttft_ms_p50:,.0f} | {each.ttft_ms_p99:,.0f} |"
        for trace, orders in found.items()
        for name, each in orders.items()
    ]
    return "\n".join(["| trace | order | hit rate | TTFT p50, ms | TTFT p99, ms |", "|---|---|---|---|---|", *rows])


if __name__ == "__main__":
    main()
