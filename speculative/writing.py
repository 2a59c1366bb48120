"""Lets a target write: many requests through the real scheduler, cache and runner, without processes around them."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import msgspec
import numpy as np

from corymb.cache.cache import Cache
from corymb.models.build import Built
from corymb.scheduler.config import SchedulerConfig
from corymb.scheduler.door import Limits
from corymb.scheduler.loop import Loop
from corymb.scheduler.messages import Generate, Output, Reply, Sampling, Stats, ToScheduler
from corymb.scheduler.plan import Int32
from corymb.scheduler.scheduler import Scheduler
from corymb.scheduler.windows import WindowPolicy

ENDED = ("stop", "length")


class WritingFailed(RuntimeError):
    """A request ended in another way than by its last token."""


@dataclass(frozen=True, slots=True)
class Task:
    """What to go on from, and how."""

    prompt_ids: Int32
    sampling: Sampling


@dataclass
class _Port:
    """Hands over all requests at once and keeps what comes back."""

    requests: list[ToScheduler]
    on_ended: Callable[[], None]
    token_ids: dict[str, list[int]] = field(default_factory=dict)
    failures: list[str] = field(default_factory=list)

    def receive(self, timeout_s: float) -> list[ToScheduler]:  # noqa: ARG002
        """See scheduler.loop.Port."""
        now, self.requests = self.requests, []
        return now

    def send_step(self, outputs: list[Output]) -> None:
        """See scheduler.loop.Port."""
        for output in outputs:
            self.token_ids.setdefault(output.rid, []).extend(output.token_ids)
            if output.finish is not None:
                self.on_ended()
                if output.finish.reason not in ENDED:
                    self.failures.append(f"{output.rid}: {output.finish}")

    def send(self, message: Stats | Reply) -> None:
        """Nobody asks."""


class Writer:
    """Runs tasks on a runner that somebody else owns."""

    def __init__(self, built: Built, config: SchedulerConfig, *, windows: WindowPolicy | None = None) -> None:
        """`windows`: of a runner that speculates."""
        self._built = built
        self._config = config
        self._windows = windows

    def write(self, tasks: Sequence[Task], on_progress: Callable[[int, int], None]) -> list[Int32]:
        """What the target wrote for each task, its end token included. Raises WritingFailed."""
        done = 0

        def ended() -> None:
            nonlocal done
            done += 1
            on_progress(done, len(tasks))

        port = self._run(tasks, ended, lambda: False)
        return [np.array(port.token_ids[str(index)], np.int32) for index in range(len(tasks))]

    def write_until(self, tasks: Sequence[Task], is_enough: Callable[[], bool]) -> None:
        """Runs tasks and leaves them where they are as soon as it is enough. Raises WritingFailed."""
        self._run(tasks, lambda: None, is_enough)

    def _run(self, tasks: Sequence[Task], on_ended: Callable[[], None], is_enough: Callable[[], bool]) -> _Port:
        built = self._built
        cache = Cache(msgspec.structs.replace(built.cache_config, enable_prefix_cache=False))
        limits = Limits(built.vocab_size, built.context_length, built.eos_ids)
        scheduler = Scheduler(self._config, cache, limits, windows=self._windows)
        port = _Port([_request(index, task) for index, task in enumerate(tasks)], on_ended)
        loop = Loop(scheduler, built.runner, port, overlap_depth=self._config.overlap_depth)
        while (port.requests or not scheduler.is_idle) and not is_enough():
            loop.step()
        if port.failures:
            raise WritingFailed(f"{len(port.failures)} of {len(tasks)} requests failed: {port.failures[0]}")
        return port


def _request(index: int, task: Task) -> Generate:
    return Generate(rid=str(index), prompt=task.prompt_ids.tobytes(), sampling=task.sampling)
