"""A device on which copies beside the other work are done as late as they may be: who does not wait finds it undone."""

from collections import deque
from collections.abc import Callable

import pytest
import torch

from corymb.models import cuda_build
from corymb.models.cuda_device import CudaLane, HostDevice, HostMark, Mark

NUM_QUESTIONS = 3  # to a mark until it is passed
LATE_CYCLES = 20_000_000  # some 10 ms of an H200


class LateMark(HostMark):
    """The end of some work of a lane."""

    def __init__(self, device: "LateDevice") -> None:
        self._device = device
        self._num_questions = 0
        self.is_passed = False

    def passed(self) -> bool:
        """Sooner or later."""
        self._num_questions += 1
        if self._num_questions == NUM_QUESTIONS:
            self._device.wait(self)
        return self.is_passed

    def synchronize(self) -> None:
        """Does the work."""
        self._device.wait(self)


class LateDevice(HostDevice):
    """One lane, which does nothing before somebody waits."""

    def __init__(self) -> None:
        self._queue: deque[tuple[Callable[[], None], LateMark]] = deque()

    def lane(self) -> "LateDevice":
        """Itself."""
        return self

    def queue(self, work: Callable[[], None]) -> Mark:
        """Puts it off."""
        mark = LateMark(self)
        self._queue.append((work, mark))
        return mark

    def wait(self, mark: Mark) -> None:
        """Does what is queued up to the mark."""
        while not mark.is_passed:
            work, end = self._queue.popleft()
            work()
            end.is_passed = True

    def synchronize(self) -> None:
        """Does all."""
        if self._queue:
            self.wait(self._queue[-1][1])


def put_off_copies(monkeypatch: pytest.MonkeyPatch) -> None:
    """Servers built from now on do copies late."""
    if not torch.cuda.is_available():
        monkeypatch.setattr(cuda_build, "HostDevice", LateDevice)
        return
    queue = CudaLane.queue

    def queue_late(lane: CudaLane, work: Callable[[], None]) -> Mark:
        def late() -> None:
            torch.cuda._sleep(LATE_CYCLES)
            work()

        return queue(lane, late)

    monkeypatch.setattr(CudaLane, "queue", queue_late)
