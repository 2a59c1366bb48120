"""Ways to sum a batch's rows over GPUs, each with or without the norm that follows."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import cycle
from typing import Protocol

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import _symmetric_memory as symmetric

from corymb.kernels.operations import Norm, Operations
from corymb.kernels.triton_all_reduce import PickRows, SumRows
from corymb.kernels.triton_jit import Launch

NO_LIMIT = 1 << 30  # but for the buffers'


class Way(Protocol):
    """One way."""

    name: str
    most_rows: int

    def all_reduce(self, x: Tensor) -> Tensor:
        """Returns the sum of x [N, width] over the ranks; x may change."""
        ...

    def first(self, x: Tensor) -> Tensor:
        """The same, for the first sum of a step."""
        ...

    def add_rms_norm(self, x: Tensor, residual: Tensor, norm: Norm, operations: Operations) -> Tensor:
        """Adds that sum to residual in place and returns the norm of that."""
        ...


class Nccl:
    """The library, for any number of rows."""

    name = "NCCL"
    most_rows = NO_LIMIT

    def all_reduce(self, x: Tensor) -> Tensor:
        """See Way."""
        x = x.contiguous()
        dist.all_reduce(x)
        return x

    def first(self, x: Tensor) -> Tensor:
        """See Way."""
        return self.all_reduce(x)

    def add_rms_norm(self, x: Tensor, residual: Tensor, norm: Norm, operations: Operations) -> Tensor:
        """See Way."""
        return operations.add_rms_norm(self.all_reduce(x), residual, norm.weight, norm.eps)


@dataclass(frozen=True, slots=True)
class Buffer:
    """Memory of which every rank has a part that all can reach."""

    own: Tensor
    addresses: Tensor  # int64 [size]: where the ranks' parts lie


def share(count: int, dtype: torch.dtype, device: torch.device) -> Buffer:
    """Makes one, of zeros. All ranks call it at once."""
    own = symmetric.empty(count, dtype=dtype, device=device)
    own.zero_()
    handle = symmetric.rendezvous(own, _world())
    return Buffer(own, torch.tensor(handle.buffer_ptrs, dtype=torch.int64, device=device))


def _world() -> dist.ProcessGroup:
    group = dist.group.WORLD
    assert group is not None, "NCCL comes first"
    return group


class Buffers:
    """Buffers for consecutive sums of one step: never the same twice in a row. Each step starts with one of its own,
    so that this holds across captured steps too."""

    def __init__(self, count: int, dtype: torch.dtype, device: torch.device) -> None:
        """All ranks make them at once. `count` numbers each."""
        self._first = share(count, dtype, device)
        self._others = [share(count, dtype, device) for _ in range(2)]
        self._turn: Iterator[Buffer] = cycle(self._others)

    def first(self) -> Buffer:
        """For the first sum of a step."""
        self._turn = cycle(self._others)
        return self._first

    def next(self) -> Buffer:
        """For a further one."""
        return next(self._turn)


class Torch:
    """What torch does with shared memory, one kernel for the sum and one for the norm."""

    def __init__(self, buffers: Buffers, *, shots: int) -> None:
        """`shots`: 1, every rank sums all; 2, every rank sums a part and hands it out."""
        self.name = "one shot" if shots == 1 else "two shots"
        self.most_rows = NO_LIMIT
        self._buffers = buffers
        self._shots = shots
        self._group = _world().group_name

    def all_reduce(self, x: Tensor) -> Tensor:
        """See Way."""
        return self._sum(x, self._buffers.next())

    def first(self, x: Tensor) -> Tensor:
        """See Way."""
        return self._sum(x, self._buffers.first())

    def _sum(self, x: Tensor, buffer: Buffer) -> Tensor:
        held = buffer.own[: x.numel()].view(x.shape)
        held.copy_(x)
        operations = torch.ops.symm_mem
        if self._shots == 1:
            summed: Tensor = operations.one_shot_all_reduce(held, "sum", self._group)
            return summed
        operations.two_shot_all_reduce_(held, "sum", self._group)
        return held

    def add_rms_norm(self, x: Tensor, residual: Tensor, norm: Norm, operations: Operations) -> Tensor:
        """See Way."""
        return operations.add_rms_norm(self.all_reduce(x), residual, norm.weight, norm.eps)


class Fused:
    """One kernel of ours for all: the same bits for a row whatever rows are beside it."""

    def __init__(self, buffers: Buffers, launch: Launch, device: torch.device, *, pushed: int = 0) -> None:
        """All ranks make it at once. `pushed`: see SumRows."""
        rank, size = dist.get_rank(), dist.get_world_size()
        self.name = "pushed" if pushed else "fused"
        self.most_rows = pushed or NO_LIMIT
        self._flags = share(SumRows.num_flags(launch, size), torch.int32, device)
        self._sum = SumRows(self._flags.addresses, launch, rank=rank, size=size, pushed=pushed)
        self._buffers = buffers
        self._launch = launch

    def picker(self) -> PickRows:
        """For choices over the ranks, with the same flags."""
        return PickRows(self._flags.addresses, self._launch, rank=dist.get_rank(), size=dist.get_world_size())

    def first(self, x: Tensor) -> Tensor:
        """See Way."""
        return self._sum(x, self._buffers.first().addresses)

    def all_reduce(self, x: Tensor) -> Tensor:
        """See Way."""
        return self._sum(x, self._buffers.next().addresses)

    def add_rms_norm(self, x: Tensor, residual: Tensor, norm: Norm, operations: Operations) -> Tensor:  # noqa: ARG002
        """See Way."""
        return self._sum(x, self._buffers.next().addresses, residual=residual, norm=norm)
