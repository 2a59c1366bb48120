"""Runs the real scheduler, cache and runner over requests, without the processes around them."""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from corymb.cache.cache import Cache
from corymb.cache.storage import Storage
from corymb.models.build import Built, RunnerOptions, build
from corymb.scheduler.config import SchedulerConfig
from corymb.scheduler.door import Limits
from corymb.scheduler.loop import Loop
from corymb.scheduler.messages import Control, Generate, Output, Reply, Stats, ToScheduler
from corymb.scheduler.scheduler import Scheduler

RUNNER_FIELDS = {"page_size", "max_total_tokens", "enable_prefix_cache", "dtype", "sliding_ratio"}
RUNNER_FIELDS |= {"speculation", "device", "second_tier", "max_states", "state_interval", "max_states_per_path"}


@dataclass
class FakePort:
    """Hands over a few requests a turn and keeps what comes back."""

    requests: Sequence[ToScheduler]
    outputs: dict[str, list[Output]] = field(default_factory=dict)
    stats: Stats | None = None
    chooser: random.Random = field(default_factory=lambda: random.Random(5))

    def receive(self, timeout_s: float) -> list[ToScheduler]:
        count = self.chooser.randint(0, 3)
        now, self.requests = self.requests[:count], self.requests[count:]
        return list(now)

    def send_step(self, outputs: list[Output]) -> None:
        for output in outputs:
            self.outputs.setdefault(output.rid, []).append(output)

    def send(self, message: Stats | Reply) -> None:
        self.stats = message if isinstance(message, Stats) else self.stats

    def token_ids(self, rid: str) -> list[int]:
        return [token_id for output in self.outputs[rid] for token_id in output.token_ids]


def serve(folder: Path, requests: list[Generate], variant: dict[str, object]) -> FakePort:
    """Runs all requests to their ends on the model of a folder."""
    (port,) = serve_rounds(folder, [requests], variant)
    return port


def serve_rounds(
    folder: Path,
    rounds: Sequence[Sequence[ToScheduler]],
    variant: dict[str, object],
    *,
    flush: bool = False,
    after_step: Callable[[Cache], None] = lambda _: None,
    make_storage: Callable[[Built], Storage] | None = None,
) -> list[FakePort]:
    """Runs one list of requests after another on one server; with `flush`, the cache is dropped in between."""
    most = int(variant.get("max_running_requests", 16))  # type: ignore[call-overload]
    runner_options = {name: value for name, value in variant.items() if name in RUNNER_FIELDS}
    others = {name: value for name, value in variant.items() if name not in RUNNER_FIELDS | {"windows", "matchers"}}
    options = RunnerOptions(folder, max_running_requests=most, **runner_options)  # type: ignore[arg-type]
    built = build(options, lambda *_: None)
    config = SchedulerConfig(**({"max_running_requests": most} | others))  # type: ignore[arg-type]
    cache = Cache(built.cache_config, make_storage(built) if make_storage else None)
    limits = Limits(built.vocab_size, built.context_length, built.eos_ids, built.can_embed)
    windows, matchers = variant.get("windows"), variant.get("matchers")
    scheduler = Scheduler(config, cache, limits, windows=windows, matchers=matchers)  # type: ignore[arg-type]
    ports = []
    for requests in rounds:
        port = FakePort(list(requests))
        loop = Loop(scheduler, built.runner, port, overlap_depth=config.overlap_depth)
        while port.requests or not scheduler.is_idle:
            loop.step()
            after_step(cache)
        cache.check()
        if cache.host and cache.host.storage:
            loop.step()  # an idle one: copies what is to be written
            while cache.host.storage.num_writing:
                loop.step()
        if flush:
            scheduler.receive(Control("flush", "flush_cache"))
            assert [reply.ok for reply in scheduler.take_replies()] == [True]
        ports.append(port)
    built.runner.close()
    return ports
