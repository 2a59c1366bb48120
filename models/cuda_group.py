"""The ranks of several GPUs: sums by whatever was measured to be fastest for their size, the rest by NCCL."""

import itertools
import statistics
from bisect import bisect_left
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import Tensor
from torch._C._distributed_c10d import PrefixStore

from corymb.kernels.operations import Norm, Operations
from corymb.kernels.triton_jit import Launch
from corymb.models.cuda_device import Device
from corymb.models.cuda_sums import Buffers, Fused, Nccl, Torch, Way
from corymb.models.gloo_group import GlooGroup
from corymb.models.meeting import Ranks

MOST_SHARED_ROWS = 2048  # more are left to NCCL, which needs no buffers
MEASURED_ROWS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, MOST_SHARED_ROWS)
CALLS, REPLAYS = 20, 7


@dataclass(frozen=True, slots=True)
class Sums:
    """What a model sums: rows of this width."""

    width: int
    dtype: torch.dtype
    most_rows: int


class CudaGroup:
    """Implements `Group`. Everything it queues may be captured in a CUDA graph. One a process."""

    def __init__(self, ranks: Ranks, host: GlooGroup, device: Device, launch: Launch, *, deterministic: bool) -> None:
        """Waits for all ranks. `deterministic`: a row's sum has the same bits whatever rows are beside it."""
        self.rank, self.size = host.rank, host.size
        self._host = host
        self._device = device
        self._launch = launch
        self._deterministic = deterministic
        dist.init_process_group(
            "nccl",
            store=PrefixStore("nccl", ranks.store),
            rank=self.rank,
            world_size=self.size,
            device_id=device.device,
            timeout=timedelta(seconds=ranks.meeting.step_timeout_s),
        )
        self._nccl = Nccl()
        self._sums: Sums | None = None
        self._fused: Fused | None = None
        self._limits: list[int] = []  # rows
        self._ways: list[Way] = [self._nccl]  # up to each limit, and beyond the last
        self.detail = f"{self.size} ranks over NCCL"

    def prepare(self, sums: Sums, operations: Operations) -> None:
        """Makes buffers for these sums and finds the fastest way for each size. Before anything is captured."""
        rows = sums.most_rows if self._deterministic else min(sums.most_rows, MOST_SHARED_ROWS)
        buffers = Buffers(rows * sums.width, sums.dtype, self._device.device)
        self._fused = Fused(buffers, self._launch, self._device.device)
        self._sums = sums
        torch.cuda.synchronize(self._device.device)
        self._host.least([0])  # every rank's flags are zero before anybody raises one
        if self._deterministic:
            self._limits, self._ways = [rows], [self._fused, self._nccl]
            self.detail = f"{self.size} ranks, sums fused: the same bits in any batch"
            return
        ways: list[Way] = [self._fused, Torch(buffers, shots=1), Torch(buffers, shots=2), self._nccl]
        measured = [count for count in MEASURED_ROWS if count <= rows]
        times = {count: self._measure(ways, count, sums, operations) for count in measured}
        best = {count: min(range(len(ways)), key=times[count].__getitem__) for count in measured}
        self._limits = measured
        self._ways = [*(ways[best[count]] for count in measured), self._nccl]
        figures = [f"{count}: {ways[best[count]].name} {min(times[count]):.1f}" for count in measured]
        nccl = ", ".join(f"{count}: {times[count][-1]:.1f}" for count in measured if count in (1, 64, 256, 1024))
        self.detail = f"{self.size} ranks; sum, add and norm by rows, µs: {', '.join(figures)} (NCCL {nccl})"

    def all_reduce(self, x: Tensor) -> Tensor:
        """See Group."""
        return self._way(x).all_reduce(x)

    def first_sum(self, x: Tensor) -> Tensor:
        """See Group."""
        way = self._way(x)
        return self._fused.first(x) if self._fused is not None and way is self._fused else way.all_reduce(x)

    def add_rms_norm(self, x: Tensor, residual: Tensor, norm: Norm, operations: Operations) -> Tensor:
        """See Group."""
        return self._way(x).add_rms_norm(x, residual, norm, operations)

    def all_gather(self, x: Tensor) -> Tensor:
        """See Group."""
        gathered = x.new_empty((self.size, *x.shape))
        dist.all_gather_into_tensor(gathered, x.contiguous())
        return gathered

    def copy_from_first(self, x: Tensor) -> None:
        """See Group."""
        dist.broadcast(x, 0)

    def _way(self, x: Tensor) -> Way:
        sums = self._sums
        if sums is None or x.dtype != sums.dtype or x.dim() != 2 or x.shape[1] != sums.width:
            return self._nccl
        return self._ways[bisect_left(self._limits, len(x))]

    def _measure(self, ways: list[Way], count: int, sums: Sums, operations: Operations) -> list[float]:
        """Microseconds of a sum with the norm that follows it, each way: the slowest rank's, so that all agree."""
        device = self._device.device
        x = torch.zeros((count, sums.width), dtype=sums.dtype, device=device)
        norm = Norm(torch.ones(sums.width, device=device), 1e-5)
        residual = torch.zeros_like(x)
        own = []
        for way in ways:
            work = lambda way=way: [way.add_rms_norm(x, residual, norm, operations) for _ in range(CALLS)]  # noqa: E731
            own.append(round(1000 * self._replay_us(work)))
        slowest = [-each for each in self._host.least([-each for each in own])]
        return [each / 1000 for each in slowest]

    def _replay_us(self, work: Callable[[], object]) -> float:
        def queue() -> None:
            work()

        queue()  # compiles
        self._device.synchronize()
        replay = self._device.capture(queue)
        marks = [self._device.mark() for _ in range(REPLAYS + 1)]
        replay()
        for mark in marks:
            mark.record()
            replay()
        self._device.synchronize()
        spans = [later.seconds_since(earlier) for earlier, later in itertools.pairwise(marks)]
        return statistics.median(spans) * 1e6 / CALLS
