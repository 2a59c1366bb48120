"""Ranks that exchange tensors through host memory: those of CPUs, and a GPU's where kernels are interpreted."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor
from torch.distributed import ProcessGroup

from corymb.kernels.operations import Norm, Operations
from corymb.kernels.sampling import Choice
from corymb.models.group import choose_gathered


class LostRank(RuntimeError):
    """Another rank does not answer any more."""


class GlooGroup:
    """Implements `Group` over gloo. Used by one thread at a time."""

    def __init__(self, gloo: ProcessGroup) -> None:
        self._gloo = gloo
        self.rank = gloo.rank()
        self.size = gloo.size()

    def all_reduce(self, x: Tensor) -> Tensor:
        """See Group. Added up in the order of ranks: gloo's own order depends on how many rows there are, and a row's
        bits must not."""
        parts = self.all_gather(x)
        total = parts[0]
        for part in parts[1:]:
            total = total + part
        return total

    def first_sum(self, x: Tensor) -> Tensor:
        """See Group."""
        return self.all_reduce(x)

    def add_rms_norm(self, x: Tensor, residual: Tensor, norm: Norm, operations: Operations) -> Tensor:
        """See Group."""
        return operations.add_rms_norm(self.all_reduce(x), residual, norm.weight, norm.eps)

    def all_gather(self, x: Tensor) -> Tensor:
        """See Group."""
        gathered = x.new_empty((self.size, *x.shape))
        if x.numel():
            parts = [_bytes(part) for part in gathered.unbind()]
            with _losses():
                self._gloo.allgather([parts], [_bytes(x.contiguous())]).wait()
        return gathered

    def choose(self, scores: Tensor, own: Choice, first: int) -> Choice:
        """See Group."""
        return choose_gathered(self, scores, own, first)

    def copy_from_first(self, x: Tensor) -> None:
        """See Group."""
        if x.numel():
            with _losses():
                self._gloo.broadcast(_bytes(x), 0).wait()

    def exchange(self, payload: bytes) -> list[bytes]:
        """What each rank gave, by rank; of one length on all."""
        gathered = self.all_gather(torch.frombuffer(bytearray(payload), dtype=torch.uint8))
        return [bytes(part.numpy()) for part in gathered]

    def least(self, values: Sequence[int]) -> list[int]:
        """The smallest of each of these numbers on any rank."""
        return self.all_gather(torch.tensor(values)).amin(dim=0).tolist()


@contextmanager
def _losses() -> Iterator[None]:
    try:
        yield
    except RuntimeError as error:  # gloo has no other: a connection that ended, or a time that is over
        raise LostRank(f"Another rank does not answer: {error}") from error


def _bytes(x: Tensor) -> Tensor:
    """The memory of a contiguous tensor: gloo does not know every type."""
    return x.view(-1).view(torch.uint8)
