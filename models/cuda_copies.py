"""Copies between a GPU and the host, beside the GPU's other work."""

from collections import deque

from corymb.cache.writes import HostCopies
from corymb.models.cuda_device import Device, Mark
from corymb.models.host_pools import HostPools


class CudaCopies:
    """Owns the lane of the device that they take, one lot after another; see HostCopies for what comes behind what."""

    def __init__(self, pools: HostPools, device: Device) -> None:
        self._pools = pools
        self._device = device
        self._lane = device.lane()
        self._ends: deque[tuple[int, Mark]] = deque()  # of lots that may be on their way, by number
        self._last = 0

    def queue(self, lot: HostCopies) -> None:
        """Queues a lot behind all that is queued so far, and has what is queued next come behind the lots it awaits."""
        self._last = lot.number
        if lot.copies:
            self._ends.append((lot.number, self._lane.queue(lambda: self._pools.copy(lot.copies))))
        awaited = [end for number, end in self._ends if number <= lot.awaited]
        if awaited:
            self._device.wait(awaited[-1])  # lots end in their order

    @property
    def num_done(self) -> int:
        """The number of the last lot that is done, and all before it."""
        while self._ends and self._ends[0][1].passed():
            self._ends.popleft()
        return self._ends[0][0] - 1 if self._ends else self._last
