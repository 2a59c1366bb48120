"""A GPU as the runner needs it: events, memory that copies do not wait for, and captured graphs."""

from collections.abc import Callable
from typing import Protocol

import torch
from torch import Tensor


class Mark(Protocol):
    """A point in the order of the device's work."""

    def record(self) -> None:
        """Puts the mark behind everything queued so far."""
        ...

    def synchronize(self) -> None:
        """Blocks until the device has passed the mark."""
        ...

    def seconds_since(self, earlier: "Mark") -> float:
        """Device time between two marks that were passed."""
        ...


class Device(Protocol):
    """Where the runner's tensors live and its work is queued, in order."""

    device: torch.device

    def mark(self) -> Mark:
        """A new mark."""
        ...

    def pinned(self, size: int) -> Tensor:
        """int32 host memory that the device copies from and to by itself."""
        ...

    def capture(self, work: Callable[[], None]) -> Callable[[], None]:
        """Records the device work that `work` queues, and returns what queues it again."""
        ...

    def synchronize(self) -> None:
        """Blocks until the device has done everything queued."""
        ...


class CudaMark:
    """A CUDA event."""

    def __init__(self) -> None:
        self._event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]

    def record(self) -> None:
        """See Mark."""
        self._event.record()

    def synchronize(self) -> None:
        """See Mark. Lets other threads run meanwhile."""
        self._event.synchronize()

    def seconds_since(self, earlier: "Mark") -> float:
        """See Mark."""
        assert isinstance(earlier, CudaMark), "marks of two kinds of device"
        return float(earlier._event.elapsed_time(self._event)) / 1000


class CudaDevice:
    """One NVIDIA GPU and its current stream. Owns the memory pool that all captured graphs share."""

    def __init__(self, index: int = 0) -> None:
        self.device = torch.device("cuda", index)
        self._pool = torch.cuda.graph_pool_handle()
        self._stream = torch.cuda.Stream(self.device)  # type: ignore[no-untyped-call]

    def mark(self) -> Mark:
        """See Device."""
        return CudaMark()

    def pinned(self, size: int) -> Tensor:
        """See Device."""
        return torch.empty(size, dtype=torch.int32, pin_memory=True)

    def capture(self, work: Callable[[], None]) -> Callable[[], None]:
        """See Device. `work` must have run before, so that every kernel is compiled."""
        graph, current = torch.cuda.CUDAGraph(), torch.cuda.current_stream(self.device)
        self._stream.wait_stream(current)
        # Not torch.cuda.graph: it collects garbage first, a tenth of a second for each of many graphs.
        with torch.cuda.stream(self._stream):
            graph.capture_begin(pool=self._pool, capture_error_mode="thread_local")
            work()
            graph.capture_end()
        current.wait_stream(self._stream)
        return graph.replay

    def synchronize(self) -> None:
        """See Device."""
        torch.cuda.synchronize(self.device)


class HostMark:
    """Work on a host is done when its call returns."""

    def record(self) -> None:
        """See Mark."""

    def synchronize(self) -> None:
        """See Mark."""

    def seconds_since(self, earlier: "Mark") -> float:  # noqa: ARG002
        """See Mark."""
        return 0.0


class HostDevice:
    """Stands in for a GPU under Triton's interpreter: a graph is replayed by doing its work again."""

    device = torch.device("cpu")

    def mark(self) -> Mark:
        """See Device."""
        return HostMark()

    def pinned(self, size: int) -> Tensor:
        """See Device."""
        return torch.empty(size, dtype=torch.int32)

    def capture(self, work: Callable[[], None]) -> Callable[[], None]:
        """See Device."""
        return work

    def synchronize(self) -> None:
        """See Device."""
