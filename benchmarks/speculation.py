"""What speculation brings: plain, static and compact decoding in a closed loop of 1 to 256 requests of three kinds.

    python benchmarks/speculation.py TARGET --draft DRAFT --batches 1 8 64 --device cuda
    python benchmarks/speculation.py TARGET --draft DRAFT --batches 1 2 4 8 16 32 --rounds 2 --name speculation_cpu
    python benchmarks/speculation.py --plot                     results/speculation.svg, and tables

Costs are those of DRAFT/sps.json (corymb draft profile) where it exists, else measured at the start as a server does.

Requests run through the scheduler, cache and runner that serve, without HTTP around them. Each place that gets free is
taken at once; what is measured lies between the first full batch and the last request's coming. Figures, by mode and
batch: tokens a second, the share of a step that is not the target's forward, the share that the device works, mean
window and utilisation by kind of task, accept length, and how far the cost model's step times are from those that came.
Answers of all modes are compared.
"""

import argparse
import itertools
import time
from collections import defaultdict
from collections.abc import Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from pathlib import Path
from statistics import mean, median
from typing import Literal

import msgspec
import numpy as np
import speculation_plot
from record import record

from corymb.cache.cache import Cache
from corymb.models.architectures import read_config
from corymb.models.build import Built, RunnerOptions, build
from corymb.scheduler.config import SchedulerConfig
from corymb.scheduler.door import Limits
from corymb.scheduler.loop import Loop
from corymb.scheduler.messages import Generate, Output, Reply, Sampling, Stats, ToScheduler
from corymb.scheduler.plan import LAST_SAMPLED, Int32, Sampled, StepPlan
from corymb.scheduler.scheduler import Scheduler
from corymb.scheduler.windows import FullWindows, WindowPolicy
from corymb.serve.draft_speech import ChatSpeech
from corymb.speculative.allocation import Compact
from corymb.speculative.block_speculation import BlockSpeculation, read_block_speculation
from corymb.speculative.budget import Budgets
from corymb.speculative.calibration import read_temperatures
from corymb.speculative.cost_model import CostModel, read_table
from corymb.speculative.measuring import measure_server
from corymb.speculative.prompts import Prompts
from corymb.speculative.trace import Trace, Traced

KINDS = ("arithmetic", "list", "chat")  # from the easiest to draft for to the hardest
BATCHES = (1, 2, 4, 8, 16, 32, 64, 128, 256)
Mode = Literal["plain", "static", "compact"]
MODES: tuple[Mode, ...] = ("plain", "static", "compact")
MOST_ANSWER = 150


@dataclass(frozen=True, slots=True)
class Took:
    """One step, in seconds."""

    step_s: float  # from the result before it to its own
    verify_s: float  # the target's forward
    device_s: float  # all that the device did
    predicted_s: float | None


@dataclass
class Watch:
    """A WindowPolicy around another; keeps what came of its steps."""

    inner: WindowPolicy
    kinds: dict[bytes, str]
    windows: dict[str, list[int]] = field(default_factory=lambda: defaultdict(list))
    accepted: dict[str, list[int]] = field(default_factory=lambda: defaultdict(list))
    took: list[Took] = field(default_factory=list)
    steps: int = 0
    idle: int = 0  # of the steps, those that did not draft
    _of_row: dict[int, str] = field(default_factory=dict)
    _last_s: float | None = None

    @property
    def num_drafts(self) -> int:
        """See WindowPolicy."""
        return self.inner.num_drafts

    def open(self, row: int, step: int) -> None:
        """See WindowPolicy."""
        self.inner.open(row, step)

    def budget(self, step: int, rows: Int32, starts: Int32, most: Int32) -> int | None:
        """See WindowPolicy."""
        return self.inner.budget(step, rows, starts, most)

    def learn(self, plan: StepPlan, sampled: Sampled) -> float | None:
        """See WindowPolicy."""
        predicted_s = self.inner.learn(plan, sampled)
        self.idle += sampled.drafted is None and plan.windows is not None
        self.steps += plan.windows is not None
        for opened in plan.opened:
            self._of_row[opened.row] = self.kinds[opened.prompt_ids.tobytes()]
        now_s, before_s = time.perf_counter(), self._last_s
        decodes = bool((plan.token_ids == LAST_SAMPLED).all())
        self._last_s = now_s if decodes else None
        if not decodes or before_s is None:
            return predicted_s
        drafted = sampled.drafted
        verify_s = sampled.forward_s if drafted is None else drafted.verify_s - drafted.settle_s
        self.took.append(Took(now_s - before_s, verify_s, sampled.forward_s, predicted_s))
        verified = np.zeros(plan.num_rows, np.int32) if drafted is None else drafted.num_verified
        for row, window, count in zip(plan.rows.tolist(), verified.tolist(), sampled.counts.tolist(), strict=True):
            self.windows[self._of_row[row]].append(window + 1)
            self.accepted[self._of_row[row]].append(count)
        return predicted_s


@dataclass
class Port:
    """Hands over all requests at once; notes when tokens come while the batch is full."""

    requests: list[ToScheduler]
    batch: int
    token_ids: dict[str, list[int]] = field(default_factory=dict)
    ended: int = 0
    begun_s: float | None = None
    over_s: float = 0.0
    counted: int = 0
    failures: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._total = len(self.requests)
        self._seen: set[str] = set()

    def receive(self, timeout_s: float) -> list[ToScheduler]:  # noqa: ARG002
        """See scheduler.loop.Port."""
        now, self.requests = self.requests, []
        return now

    def send_step(self, outputs: list[Output]) -> None:
        """See scheduler.loop.Port."""
        is_full = self.begun_s is not None and self._total - self.ended >= self.batch
        for output in outputs:
            self.token_ids.setdefault(output.rid, []).extend(output.token_ids)
            self._seen.add(output.rid)
            self.counted += len(output.token_ids) if is_full else 0
            if output.finish is not None:
                self.ended += 1
                if output.finish.reason not in {"stop", "length"}:
                    self.failures.append(f"{output.rid}: {output.finish}")
        if is_full:
            self.over_s = time.perf_counter()
        if self.begun_s is None and len(self._seen) >= self.batch:
            self.begun_s = time.perf_counter()

    def send(self, message: Stats | Reply) -> None:
        """Nobody asks."""

    @property
    def rate(self) -> float:
        """Tokens a second while the batch was full."""
        if self.begun_s is None or not self.counted:
            raise SystemExit("The batch was never full: give more --rounds.")
        return self.counted / (self.over_s - self.begun_s)


class Bench:
    """Owns one runner a mode; the same requests run through all."""

    def __init__(self, flags: argparse.Namespace) -> None:
        self._flags = flags
        speech = ChatSpeech(flags.target)
        prompts = Prompts(flags.seed, held_out=True)
        count = flags.rounds * max(flags.batches)
        asked = [(kind, speech.prompt(prompts.of(kind))) for kind, _ in zip(itertools.cycle(KINDS), range(count))]
        self._kinds = {ids.tobytes(): kind for kind, ids in asked}
        self._prompts = [ids for _, ids in asked]
        self._longest = max(map(len, self._prompts)) + flags.max_answer
        self._speculation = self._read_draft()
        self._costs: CostModel | None = None
        self._trace = None if flags.trace is None else Trace(flags.trace)

    def run(self) -> None:
        """Measures every mode at every batch."""
        answers: dict[int, list[list[int]]] = {}
        for speculation in (None, self._speculation):
            modes = [mode for mode in self._flags.modes if (mode == "plain") == (speculation is None)]
            if modes:
                self._run_modes(modes, self._build(speculation), answers)

    def _run_modes(self, modes: Sequence[Mode], built: Built, answers: dict[int, list[list[int]]]) -> None:
        """Modes of one runner."""
        try:
            for batch, mode in itertools.product(self._flags.batches, modes):
                found = self._measure(built, mode, batch)
                same = sum(one == other for one, other in zip(found, answers.setdefault(batch, found), strict=True))
                self._record("same_answers", same / len(found), "share", mode=mode, batch=batch)
        finally:
            built.runner.close()

    def _read_draft(self) -> BlockSpeculation:
        folder: Path = self._flags.draft
        read = read_block_speculation(folder, "DSPARK", read_config(self._flags.target), needs_confidence=True)
        path = folder / "sts.json"
        temperatures = read_temperatures(path, read.num_drafts) if path.exists() else None
        return BlockSpeculation(read.folder, read.config, read.num_drafts, temperatures, Compact())

    def _build(self, speculation: BlockSpeculation | None) -> Built:
        most, drafts = max(self._flags.batches), self._speculation.num_drafts
        options = RunnerOptions(
            self._flags.target,
            device=self._flags.device,
            dtype=self._flags.dtype,
            context_length=self._longest + drafts + 2,
            max_running_requests=most,
            max_total_tokens=most * (self._longest + 2 * drafts + 2),
            speculation=speculation,
        )
        return build(options, lambda *_: None)

    def _measure(self, built: Built, mode: Mode, batch: int) -> list[list[int]]:
        prompts = self._prompts[: self._flags.rounds * batch]
        requests = [self._request(index, ids) for index, ids in enumerate(prompts)]
        watch = None if mode == "plain" else Watch(self._policy(mode, built), self._kinds)
        port = Port(list(requests), batch)
        config = SchedulerConfig(max_running_requests=batch)
        cache = Cache(msgspec.structs.replace(built.cache_config, enable_prefix_cache=False))
        limits = Limits(built.vocab_size, built.context_length, built.eos_ids)
        scheduler = Scheduler(config, cache, limits, windows=watch)
        loop = Loop(scheduler, built.runner, port, overlap_depth=config.overlap_depth)
        while port.requests or not scheduler.is_idle:
            loop.step()
        if port.failures:
            raise SystemExit(f"Requests failed: {port.failures[:3]}")
        self._record("serving_output_tok_s", port.rate, "tok/s", mode=mode, batch=batch)
        if watch is not None:
            self._report(watch, mode, batch)
        return [port.token_ids[request.rid] for request in requests]

    def _policy(self, mode: Mode, built: Built) -> WindowPolicy:
        num_drafts, num_rows = self._speculation.num_drafts, built.cache_config.num_rows
        if mode == "static":
            return FullWindows(num_drafts)
        table = self._flags.draft / "sps.json"
        if self._costs is None:
            self._costs = read_table(table) if table.exists() else measure_server(built)
        budgets = Budgets(num_drafts, num_rows, deepcopy(self._costs))  # it goes on learning
        return budgets if self._trace is None else Traced(budgets, self._trace, lambda: budgets.last)

    def _report(self, watch: Watch, mode: Mode, batch: int) -> None:
        where: dict[str, str | int] = {"mode": mode, "batch": batch}
        self._record("steps_without_drafts", watch.idle / watch.steps, "share", **where)
        if not watch.took:
            return
        everything = [count for counts in watch.accepted.values() for count in counts]
        self._record("accept_length", mean(everything), "tokens", **where)
        for kind in KINDS:
            windows, accepted = watch.windows[kind], watch.accepted[kind]
            if windows:
                self._record("window_mean", mean(windows), "tokens", kind=kind, **where)
                self._record("window_used", sum(accepted) / sum(windows), "share", kind=kind, **where)
        step_s = sum(one.step_s for one in watch.took)
        verify_s, device_s = sum(one.verify_s for one in watch.took), sum(one.device_s for one in watch.took)
        self._record("step_overhead_share", 1 - verify_s / step_s, "share", **where)
        self._record("gpu_busy_share", device_s / step_s, "share", **where)
        errors = [abs(one.predicted_s - one.step_s) / one.step_s for one in watch.took if one.predicted_s is not None]
        if errors:
            self._record("step_prediction_error", median(errors), "share", **where)

    def _record(self, metric: str, value: float, unit: str, **params: str | int) -> None:
        record(self._flags.name, metric, value, unit, **params)

    def _request(self, index: int, prompt: Int32) -> Generate:
        sampling = Sampling(
            max_new_tokens=self._flags.max_answer, temperature=self._flags.temperature, seed=index, seeded=True
        )
        return Generate(rid=str(index), prompt=prompt.tobytes(), sampling=sampling)


def main(arguments: Sequence[str] | None = None) -> None:
    """See the top."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("target", type=Path, nargs="?")
    parser.add_argument("--draft", type=Path)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--dtype", default="auto")
    parser.add_argument("--batches", type=int, nargs="+", default=BATCHES)
    parser.add_argument("--modes", nargs="+", choices=MODES, default=MODES)
    parser.add_argument("--rounds", type=int, default=3, help="requests a place of the batch")
    parser.add_argument("--max-answer", type=int, default=MOST_ANSWER)
    parser.add_argument("--temperature", type=float, default=0.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--trace", type=Path, help="a line of JSON a step of compact, as --speculative-trace writes")
    parser.add_argument("--name", default="speculation", help="of the file in results")
    parser.add_argument("--plot", action="store_true")
    flags = parser.parse_args(arguments)
    if flags.plot:
        speculation_plot.main(flags.name)
        return
    if flags.target is None or flags.draft is None:
        parser.error("give TARGET and --draft, or --plot")
    Bench(flags).run()


if __name__ == "__main__":
    main()
