"""Runs requests through the real scheduler, cache and runner, without the processes around them."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import msgspec
import numpy as np

from corymb.cache.cache import Cache
from corymb.models.build import Built
from corymb.scheduler.config import SchedulerConfig
from corymb.scheduler.door import Limits
from corymb.scheduler.loop import Loop
from corymb.scheduler.messages import Generate, Output, Reply, Sampling, Stats, ToScheduler
from corymb.scheduler.scheduler import Scheduler


@dataclass
class Port:
    """Hands over all requests at once and keeps what comes back."""

    requests: list[Generate]
    token_ids: dict[str, list[int]] = field(default_factory=dict)
    errors: list[str] = field(default_factory=list)

    def receive(self, timeout_s: float) -> list[ToScheduler]:  # noqa: ARG002
        """What has not been handed over."""
        now, self.requests = self.requests, []
        return list(now)

    def send_step(self, outputs: list[Output]) -> None:
        """Keeps tokens and errors."""
        for output in outputs:
            self.token_ids.setdefault(output.rid, []).extend(output.token_ids)
            if output.finish is not None and output.finish.reason not in ("length", "stop"):
                self.errors.append(f"{output.rid}: {output.finish}")

    def send(self, message: Stats | Reply) -> None:
        """Nobody asks."""


def greedy(prompts: Sequence[Sequence[int]], num_tokens: int) -> list[Generate]:
    """Requests for so many tokens each, named by their numbers."""
    sampling = Sampling(max_new_tokens=num_tokens, temperature=0.0, ignore_eos=True)
    return [
        Generate(rid=str(index), prompt=np.asarray(prompt, np.int32).tobytes(), sampling=sampling)
        for index, prompt in enumerate(prompts)
    ]


def serve(
    built: Built, requests: Sequence[Generate], config: SchedulerConfig, *, enable_prefix_cache: bool = True
) -> list[list[int]]:
    """The output ids of all requests, in order. The cache is new; the runner may have served before."""
    cache = Cache(msgspec.structs.replace(built.cache_config, enable_prefix_cache=enable_prefix_cache))
    scheduler = Scheduler(config, cache, Limits(built.vocab_size, built.context_length, built.eos_ids))
    port = Port(list(requests))
    loop = Loop(scheduler, built.runner, port, overlap_depth=config.overlap_depth)
    while port.requests or not scheduler.is_idle:
        loop.step()
    cache.check()
    if port.errors:
        raise SystemExit(f"Requests failed: {port.errors[:3]}")
    return [port.token_ids[request.rid] for request in requests]
