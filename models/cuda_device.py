"""A GPU as the runner needs it: events, memory that copies do not wait for, and captured graphs."""

from collections.abc import Callable
from typing import Protocol

import torch
from torch import Tensor

Between = Callable[[Callable[[], None]], None]  # hands over what runs anew at every replay


class Mark(Protocol):
    """A point in the order of the device's work."""

    def record(self) -> None:
        """Puts the mark behind everything queued so far."""
        ...

    def passed(self) -> bool:
        """Whether the device has passed the mark."""
        ...

    def synchronize(self) -> None:
        """Blocks until the device has passed the mark."""
        ...

    def seconds_since(self, earlier: "Mark") -> float:
        """Device time between two marks that were passed."""
        ...


class Lane(Protocol):
    """Work that the device does in its own order, beside what is queued elsewhere."""

    def queue(self, work: Callable[[], None]) -> Mark:
        """Queues what `work` queues, behind everything queued so far, here and elsewhere. Returns the mark of its
        end."""
        ...


class Device(Protocol):
    """Where the runner's tensors live and its work is queued, in order."""

    device: torch.device

    def mark(self) -> Mark:
        """A new mark."""
        ...

    def lane(self) -> Lane:
        """A new lane."""
        ...

    def wait(self, mark: Mark) -> None:
        """Has all that is queued from now on, but in lanes, come behind the mark."""
        ...

    def pinned(self, size: int) -> Tensor:
        """int32 host memory that the device copies from and to by itself."""
        ...

    def capture(self, work: Callable[[], None]) -> Callable[[], None]:
        """Records the device work that `work` queues, and returns what queues it again."""
        ...

    def capture_pieces(self, work: Callable[[Between], None]) -> Callable[[], None]:
        """Like `capture`, but `work` may call `between(eager)`: there `eager` is called at every replay instead."""
        ...

    def borrow(self, tensor: Tensor) -> Callable[[], Tensor]:
        """Gives a tensor's memory without keeping it: it must hold what is wanted whenever it is looked at."""
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

    def passed(self) -> bool:
        """See Mark."""
        return bool(self._event.query())  # type: ignore[no-untyped-call]

    def before(self, stream: torch.cuda.Stream) -> None:
        """Has the stream's further work come behind the mark."""
        stream.wait_event(self._event)

    def synchronize(self) -> None:
        """See Mark. Lets other threads run meanwhile."""
        self._event.synchronize()

    def seconds_since(self, earlier: "Mark") -> float:
        """See Mark."""
        assert isinstance(earlier, CudaMark), "marks of two kinds of device"
        return float(earlier._event.elapsed_time(self._event)) / 1000


class CudaLane:
    """A stream of its own. What is allocated for its work is reused by its work alone."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]

    def queue(self, work: Callable[[], None]) -> Mark:
        """See Lane."""
        end = CudaMark()
        self._stream.wait_stream(torch.cuda.current_stream(self._device))
        with torch.cuda.stream(self._stream):
            work()
            end.record()
        return end


class CudaDevice:
    """One NVIDIA GPU and its current stream. Owns the memory pool that all captured graphs share."""

    def __init__(self, index: int = 0) -> None:
        self.device = torch.device("cuda", index)
        self._pool = torch.cuda.graph_pool_handle()
        self._stream = torch.cuda.Stream(self.device)  # type: ignore[no-untyped-call]

    def mark(self) -> Mark:
        """See Device."""
        return CudaMark()

    def lane(self) -> Lane:
        """See Device."""
        return CudaLane(self.device)

    def wait(self, mark: Mark) -> None:
        """See Device."""
        assert isinstance(mark, CudaMark), "a mark of another kind of device"
        mark.before(torch.cuda.current_stream(self.device))

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

    def capture_pieces(self, work: Callable[[Between], None]) -> Callable[[], None]:
        """See Device. A tensor of one piece may be read by those behind it: they are replayed in their order."""
        queue: list[Callable[[], None]] = []
        graph = torch.cuda.CUDAGraph()

        def begin() -> None:
            graph.capture_begin(pool=self._pool, capture_error_mode="thread_local")
            queue.append(graph.replay)

        def between(eager: Callable[[], None]) -> None:
            nonlocal graph
            graph.capture_end()
            queue.append(eager)
            graph = torch.cuda.CUDAGraph()
            begin()

        current = torch.cuda.current_stream(self.device)
        self._stream.wait_stream(current)
        with torch.cuda.stream(self._stream):
            begin()
            work(between)
            graph.capture_end()
        current.wait_stream(self._stream)

        def replay() -> None:
            for part in queue:
                part()

        return replay

    def borrow(self, tensor: Tensor) -> Callable[[], Tensor]:
        """See Device."""
        return Borrowed(tensor).tensor

    def synchronize(self) -> None:
        """See Device."""
        torch.cuda.synchronize(self.device)


class Borrowed:
    """The address and shape of a tensor on a GPU; in terms of bytes, which all types are made of."""

    def __init__(self, tensor: Tensor) -> None:
        item, self._dtype, self._device = tensor.element_size(), tensor.dtype, tensor.device
        self._shape, self._stride = tensor.shape, tensor.stride()
        size = item * (1 + sum((n - 1) * stride for n, stride in zip(tensor.shape, tensor.stride(), strict=True)))
        self._made: Tensor | None = None
        # numpy's description of memory that others own, which torch takes without a copy.
        self.__cuda_array_interface__ = {
            "shape": (size,),
            "typestr": "|u1",
            "data": (tensor.data_ptr(), False),
            "version": 3,
        }

    def tensor(self) -> Tensor:
        """A tensor of that memory."""
        if self._made is None:
            flat = torch.as_tensor(self, device=self._device).view(self._dtype)
            self._made = flat.as_strided(self._shape, self._stride)
        return self._made


class HostMark:
    """Work on a host is done when its call returns."""

    def record(self) -> None:
        """See Mark."""

    def passed(self) -> bool:
        """See Mark."""
        return True

    def synchronize(self) -> None:
        """See Mark."""

    def seconds_since(self, earlier: "Mark") -> float:  # noqa: ARG002
        """See Mark."""
        return 0.0


class HostLane:
    """On a host nothing is done beside anything."""

    def queue(self, work: Callable[[], None]) -> Mark:
        """See Lane."""
        work()
        return HostMark()


class HostDevice:
    """Stands in for a GPU under Triton's interpreter: a graph is replayed by doing its work again."""

    device = torch.device("cpu")

    def mark(self) -> Mark:
        """See Device."""
        return HostMark()

    def lane(self) -> Lane:
        """See Device."""
        return HostLane()

    def wait(self, mark: Mark) -> None:
        """See Device."""

    def pinned(self, size: int) -> Tensor:
        """See Device."""
        return torch.empty(size, dtype=torch.int32)

    def capture(self, work: Callable[[], None]) -> Callable[[], None]:
        """See Device."""
        return work

    def capture_pieces(self, work: Callable[[Between], None]) -> Callable[[], None]:
        """See Device."""
        return lambda: work(lambda eager: eager())

    def borrow(self, tensor: Tensor) -> Callable[[], Tensor]:
        """See Device."""
        return lambda: tensor

    def synchronize(self) -> None:
        """See Device."""
