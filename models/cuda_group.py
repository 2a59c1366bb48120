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
from corymb.kernels.sampling import Choice
from corymb.kernels.triton_all_reduce import MOST_PICKED_ROWS, PickRows
from corymb.kernels.triton_jit import Launch
from corymb.models.cuda_device import Device
from corymb.models.cuda_sums import Buffer, Buffers, Fused, Nccl, Torch, Way, share
from corymb.models.gloo_group import GlooGroup
from corymb.models.group import choose_gathered
from corymb.models.meeting import Ranks

MOST_SHARED_ROWS = 2048  # more are left to NCCL, which needs no buffers
MOST_PUSHED_ROWS = 128
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
        self._pick: PickRows | None = None
        self._picked: Buffer | None = None
        self._limits: list[int] = []  # rows
        self._ways: list[Way] = [self._nccl]  # up to each limit, and beyond the last
        self.detail = f"{self.size} ranks over NCCL"

    def prepare(self, sums: Sums, operations: Operations) -> None:
        """Makes buffers for these sums and finds the fastest way for each size. Before anything is captured."""
        rows = sums.most_rows if self._deterministic else min(sums.most_rows, MOST_SHARED_ROWS)
        device, launch = self._device.device, self._launch
        buffers = Buffers(rows * sums.width, sums.dtype, device)
        fused = Fused(buffers, launch, device)
        pushed = Buffers(self.size * MOST_PUSHED_ROWS * sums.width, sums.dtype, device)
        # Of its own: between two choices lie sums, whose meetings tell that all have read the first.
        self._picked, self._pick = share(2 * MOST_PICKED_ROWS, torch.int32, device), fused.picker()
        self._sums = sums
        ways: list[Way] = [fused, Fused(pushed, launch, device, pushed=MOST_PUSHED_ROWS)]
        ways += [Torch(buffers, shots=1), Torch(buffers, shots=2), self._nccl]
        torch.cuda.synchronize(device)
        self._host.least([0])  # every rank's flags are zero before anybody raises one
        if self._deterministic:
            self._limits, self._ways = [rows], [fused, self._nccl]
            self.detail = f"{self.size} ranks, sums fused: the same bits in any batch"
        else:
            self._choose_ways(ways, [count for count in MEASURED_ROWS if count <= rows], operations)

    def _choose_ways(self, ways: list[Way], measured: list[int], operations: Operations) -> None:
        """The fastest for each number of rows."""
        figures = []
        for count in measured:
            able = [way for way in ways if count <= way.most_rows]
            times = self._measure(able, count, operations)
            fastest = min(range(len(able)), key=times.__getitem__)
            self._ways.insert(len(self._limits), able[fastest])
            self._limits.append(count)
            figures.append(f"{count}: {able[fastest].name} {times[fastest]:.1f} (NCCL {times[-1]:.1f})")
        self.detail = f"{self.size} ranks; sum, add and norm by rows, µs: {', '.join(figures)}"

    def all_reduce(self, x: Tensor) -> Tensor:
        """See Group."""
        return self._way(x).all_reduce(x)

    def first_sum(self, x: Tensor) -> Tensor:
        """See Group."""
        return self._way(x).first(x)

    def add_rms_norm(self, x: Tensor, residual: Tensor, norm: Norm, operations: Operations) -> Tensor:
        """See Group."""
        return self._way(x).add_rms_norm(x, residual, norm, operations)

    def all_gather(self, x: Tensor) -> Tensor:
        """See Group."""
        gathered = x.new_empty((self.size, *x.shape))
        dist.all_gather_into_tensor(gathered, x.contiguous())
        return gathered

    def choose(self, scores: Tensor, own: Choice, first: int) -> Choice:
        """See Group."""
        if self._pick is None or len(scores) > MOST_PICKED_ROWS:
            return choose_gathered(self, scores, own, first)
        assert self._picked is not None, "made together"
        token_ids, usable = self._pick(scores, own.token_ids, own.usable, first, self._picked.addresses)
        return Choice(token_ids, usable)

    def copy_from_first(self, x: Tensor) -> None:
        """See Group."""
        dist.broadcast(x, 0)

    def _way(self, x: Tensor) -> Way:
        sums = self._sums
        if sums is None or x.dtype != sums.dtype or x.dim() != 2 or x.shape[1] != sums.width:
            return self._nccl
        return self._ways[bisect_left(self._limits, len(x))]

    def _measure(self, ways: list[Way], count: int, operations: Operations) -> list[float]:
        """Microseconds of a sum with the norm that follows it, each way: the slowest rank's, so that all agree."""
        device, sums = self._device.device, self._sums
        assert sums is not None, "sums are known before they are measured"
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
