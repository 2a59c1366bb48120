"""Runs plans on a CPU, one worker thread behind the scheduler's: PyTorch leaves the interpreter free meanwhile."""

from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor

import torch

from corymb.cache.writes import HostCopies
from corymb.models.execution import Execution
from corymb.models.speculation import Readable
from corymb.models.threads import Threads
from corymb.models.warm_up import padding_step
from corymb.scheduler.plan import Drafts, Masks, Sampled, StepPlan

MOST_IN_FLIGHT = 8  # steps; a loop keeps two at most


class Exchange:
    """What a running step and the scheduler tell each other: see AskMasks."""

    def __init__(self) -> None:
        self._drafts: Future[Drafts | None] = Future()
        self._masks: Future[Masks] = Future()

    def offer(self, drafts: Drafts) -> None:
        """Called by the step, once."""
        self._drafts.set_result(drafts)

    def __call__(self) -> Masks:
        """Called by the step, behind `offer`: waits for the scheduler."""
        return self._masks.result()

    def drafts(self) -> Drafts | None:
        """Called by the scheduler: waits for the step."""
        return self._drafts.result()

    def constrain(self, masks: Masks) -> None:
        """Called by the scheduler, once."""
        self._masks.set_result(masks)

    def end(self) -> None:
        """The step is over, or failed: it offers nothing any more."""
        if not self._drafts.done():
            self._drafts.set_result(None)

    def cancel(self) -> None:
        """The scheduler will not answer."""
        self._masks.cancel()


class LaunchedStep:
    """A step that runs, or waits for the steps before it."""

    def __init__(self, plan: StepPlan, samples: Future[Readable], exchange: Exchange) -> None:
        windows, constrained = plan.windows, plan.constrained
        self._drafts = windows is not None and constrained is not None and bool(windows.most[constrained].any())
        self._samples = samples
        self._exchange = exchange

    def drafts(self) -> Drafts | None:
        """See StepResult. The forward runs meanwhile."""
        return self._exchange.drafts() if self._drafts else None

    def constrain(self, masks: Masks) -> None:
        """Lets the constrained rows sample; the forward runs meanwhile."""
        self._exchange.constrain(masks)

    def wait(self) -> Sampled:
        """Blocks until the step is done. Raises what the step raised."""
        return self._samples.result().read()


class CpuRunner:
    """Owns the worker thread, which alone touches the execution's state: so plans take effect in their order."""

    def __init__(self, execution: Execution) -> None:
        self._execution = execution
        self._threads = Threads(torch.get_num_threads())
        self._worker = ThreadPoolExecutor(max_workers=1, thread_name_prefix="runner")
        self._open: deque[Exchange] = deque(maxlen=MOST_IN_FLIGHT)

    def launch(self, plan: StepPlan) -> LaunchedStep:
        """Queues one step and returns at once."""
        exchange = Exchange()
        self._open.append(exchange)
        return LaunchedStep(plan, self._worker.submit(self._run, plan, exchange), exchange)

    def copy(self, copies: HostCopies) -> None:
        """Does copies that belong to no step, behind those launched before."""
        self._worker.submit(self._execution.copy, copies).result()

    def tune(self) -> None:
        """Measures how many threads steps of few tokens should get, on the padding row. Before the first request."""
        self._worker.submit(self._threads.measure, self._step).result()

    def close(self) -> None:
        """Waits for the steps in flight and ends the worker. Steps that wait for masks fail."""
        for exchange in self._open:
            exchange.cancel()
        self._worker.shutdown(wait=True)

    def _run(self, plan: StepPlan, exchange: Exchange) -> Readable:
        num_drafts = 0 if plan.windows is None else int(plan.windows.most.sum())
        self._threads.prepare(plan.num_tokens + num_drafts)
        try:
            return self._execution.run(plan, exchange)
        finally:
            exchange.end()

    def _step(self, width: int) -> None:
        self._execution.run(padding_step(width))
