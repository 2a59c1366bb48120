"""Runs plans on a CPU, one worker thread behind the scheduler's: PyTorch leaves the interpreter free meanwhile."""

from concurrent.futures import Future, ThreadPoolExecutor

import torch

from corymb.models.execution import DeviceSamples, Execution
from corymb.models.threads import Threads
from corymb.models.warm_up import padding_step
from corymb.scheduler.plan import Sampled, StepPlan


class LaunchedStep:
    """A step that runs, or waits for the steps before it."""

    def __init__(self, samples: Future[DeviceSamples]) -> None:
        self._samples = samples

    def wait(self) -> Sampled:
        """Blocks until the step is done. Raises what the step raised."""
        return self._samples.result().read()


class CpuRunner:
    """Owns the worker thread, which alone touches the execution's state: so plans take effect in their order."""

    def __init__(self, execution: Execution) -> None:
        self._execution = execution
        self._threads = Threads(torch.get_num_threads())
        self._worker = ThreadPoolExecutor(max_workers=1, thread_name_prefix="runner")

    def launch(self, plan: StepPlan) -> LaunchedStep:
        """Queues one step and returns at once."""
        return LaunchedStep(self._worker.submit(self._run, plan))

    def tune(self) -> None:
        """Measures how many threads steps of few tokens should get, on the padding row. Before the first request."""
        self._worker.submit(self._threads.measure, self._step).result()

    def close(self) -> None:
        """Waits for the steps in flight and ends the worker."""
        self._worker.shutdown(wait=True)

    def _run(self, plan: StepPlan) -> DeviceSamples:
        self._threads.prepare(plan.num_tokens)
        return self._execution.run(plan)

    def _step(self, width: int) -> None:
        self._execution.run(padding_step(width))
