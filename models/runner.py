"""Runs plans on a CPU, one worker thread behind the scheduler's: PyTorch leaves the interpreter free meanwhile."""

from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor

import torch

from corymb.models.execution import Execution
from corymb.models.speculation import Readable
from corymb.models.threads import Threads
from corymb.models.warm_up import padding_step
from corymb.scheduler.plan import Masks, Sampled, StepPlan

MOST_IN_FLIGHT = 8  # steps; a loop keeps two at most


class LaunchedStep:
    """A step that runs, or waits for the steps before it."""

    def __init__(self, samples: Future[Readable], masks: Future[Masks]) -> None:
        self._samples = samples
        self._masks = masks

    def drafts(self) -> None:
        """Nothing drafts here."""

    def constrain(self, masks: Masks) -> None:
        """Lets the constrained rows sample; the forward runs meanwhile."""
        self._masks.set_result(masks)

    def wait(self) -> Sampled:
        """Blocks until the step is done. Raises what the step raised."""
        return self._samples.result().read()


class CpuRunner:
    """Owns the worker thread, which alone touches the execution's state: so plans take effect in their order."""

    def __init__(self, execution: Execution) -> None:
        self._execution = execution
        self._threads = Threads(torch.get_num_threads())
        self._worker = ThreadPoolExecutor(max_workers=1, thread_name_prefix="runner")
        self._awaited: deque[Future[Masks]] = deque(maxlen=MOST_IN_FLIGHT)

    def launch(self, plan: StepPlan) -> LaunchedStep:
        """Queues one step and returns at once."""
        masks: Future[Masks] = Future()
        self._awaited.append(masks)
        return LaunchedStep(self._worker.submit(self._run, plan, masks), masks)

    def tune(self) -> None:
        """Measures how many threads steps of few tokens should get, on the padding row. Before the first request."""
        self._worker.submit(self._threads.measure, self._step).result()

    def close(self) -> None:
        """Waits for the steps in flight and ends the worker. Steps that wait for masks fail."""
        for masks in self._awaited:
            masks.cancel()
        self._worker.shutdown(wait=True)

    def _run(self, plan: StepPlan, masks: Future[Masks]) -> Readable:
        num_drafts = 0 if plan.windows is None else int(plan.windows.most.sum())
        self._threads.prepare(plan.num_tokens + num_drafts)
        return self._execution.run(plan, masks.result)

    def _step(self, width: int) -> None:
        self._execution.run(padding_step(width))
