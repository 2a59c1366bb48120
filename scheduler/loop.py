"""The one loop: launch a step, then read the results of the one before it."""

import time
from collections import deque
from collections.abc import Callable
from typing import Protocol

from corymb.scheduler.messages import Output, Reply, Stats, ToScheduler
from corymb.scheduler.plan import Runner, StepPlan, StepResult
from corymb.scheduler.scheduler import Scheduler

IDLE_WAIT_S = 0.5  # how long an idle loop listens before it looks at its own state again
STUCK_WAIT_S = 0.001
STATS_INTERVAL_S = 1.0


class Port(Protocol):
    """The loop's connection to the other processes."""

    def receive(self, timeout_s: float) -> list[ToScheduler]:
        """Returns all pending messages; when there are none, waits up to `timeout_s` for the first. 0 never waits."""
        ...

    def send_step(self, outputs: list[Output]) -> None:
        """Passes on what one step gave."""
        ...

    def send(self, message: Stats | Reply) -> None:
        """Passes on something for the main process."""
        ...


class Loop:
    """Runs a scheduler against a runner. Depth 0 reads a step's result before it plans the next; depth 1 keeps one step
    in flight while it plans, sends and listens. `step` is one turn: tests call it by hand."""

    def __init__(
        self,
        scheduler: Scheduler,
        runner: Runner,
        port: Port,
        *,
        overlap_depth: int,
        clock: Callable[[], float] = time.monotonic,
        agree: Callable[[StepPlan | None], None] = lambda _: None,
    ) -> None:
        """Owns none of its three parts; the caller closes the runner. `agree` sees every plan before its launch."""
        self._scheduler = scheduler
        self._runner = runner
        self._port = port
        self._depth = overlap_depth
        self._clock = clock
        self._agree = agree
        self._in_flight: deque[tuple[StepPlan, StepResult]] = deque()
        self._stopped = False
        self._stats_due_s = 0.0
        self._reported_idle = False
        self._moved = True  # whether the last turn launched or finished a step
        self.num_steps = 0
        self.step_started_s: float | None = None  # by the clock; None while nothing is in flight

    def run(self) -> None:
        """Turns until `stop`. What a forward raises ends it: a failed step leaves a device nobody can vouch for."""
        while not self._stopped:
            self.step()

    def stop(self) -> None:
        """Makes `run` return after the turn in progress. May be called from another thread or a signal handler."""
        self._stopped = True

    def step(self) -> None:
        """One turn: receive, plan, launch, read the result that is due, let the next sample, send."""
        for message in self._port.receive(self._wait_s()):
            self._scheduler.receive(message)
        plan = self._scheduler.plan()
        self._agree(plan)
        if plan is not None:
            if self.step_started_s is None:
                self.step_started_s = self._clock()
            self._in_flight.append((plan, self._runner.launch(plan)))
            if len(self._in_flight) == 1:
                self._constrain_oldest()
        elif not self._in_flight:
            self._copy()
        self._moved = plan is not None or bool(self._in_flight)
        # Without a plan, everything waits for what is in flight.
        while len(self._in_flight) > (0 if plan is None else self._depth):
            self._commit_oldest()
        self._send()

    def _wait_s(self) -> float:
        if self._scheduler.is_resting:
            return IDLE_WAIT_S
        return 0.0 if self._moved else STUCK_WAIT_S

    def _copy(self) -> None:
        """Nothing is computed: what is to be stored need not wait for the next step, which may never come."""
        copies = self._scheduler.take_copies()
        if copies is not None:
            self._runner.copy(copies)
            self._scheduler.copied(copies)

    def _commit_oldest(self) -> None:
        plan, result = self._in_flight.popleft()
        sampled = result.wait()
        self.num_steps += 1
        self.step_started_s = self._clock() if self._in_flight else None
        self._scheduler.commit(plan, sampled)
        if self._in_flight:
            self._constrain_oldest()

    def _constrain_oldest(self) -> None:
        """Its masks depend on every result before it: they are made now, while the device computes its forward."""
        plan, result = self._in_flight[0]
        if plan.constrained is not None:
            result.constrain(self._scheduler.masks(plan, result.drafts()))

    def _send(self) -> None:
        outputs = self._scheduler.take_outputs()
        if outputs:
            self._port.send_step(outputs)
        for reply in self._scheduler.take_replies():
            self._port.send(reply)
        idle, now_s = self._scheduler.is_idle, self._clock()
        # The last snapshot before falling silent must show that nothing runs.
        if now_s >= self._stats_due_s or (idle and not self._reported_idle):
            self._port.send(self._scheduler.stats())
            self._stats_due_s = now_s + STATS_INTERVAL_S
            self._reported_idle = idle
        elif not idle:
            self._reported_idle = False
