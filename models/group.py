"""The ranks that compute one model together, as its layers and its sampler see them."""

from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor

from corymb.kernels.operations import Norm, Operations
from corymb.kernels.sampling import Choice


class Group(Protocol):
    """One rank's view. All ranks make the same calls in the same order, with tensors of the same shapes."""

    @property
    def rank(self) -> int:
        """This rank, from 0."""
        ...

    @property
    def size(self) -> int:
        """How many ranks there are."""
        ...

    def all_reduce(self, x: Tensor) -> Tensor:
        """Returns the sum of x over all ranks: the same bits on each."""
        ...

    def first_sum(self, x: Tensor) -> Tensor:
        """`all_reduce`, of what is summed first in a step. Between two of these, all ranks meet in some other call."""
        ...

    def add_rms_norm(self, x: Tensor, residual: Tensor, norm: Norm, operations: Operations) -> Tensor:
        """Adds the sum of x over all ranks to residual in place and returns the norm of that."""
        ...

    def all_gather(self, x: Tensor) -> Tensor:
        """Returns [size, *x.shape], by rank."""
        ...

    def choose(self, scores: Tensor, own: Choice, first: int) -> Choice:
        """Returns the best of the ranks' choices for every row, the lowest token among equals; a row is usable if it is
        so on all. `own` is this rank's choice among its scores [N, V], the first of which is token `first`'s."""
        ...

    def copy_from_first(self, x: Tensor) -> None:
        """Overwrites x with what rank 0 has."""
        ...


class Alone:
    """Implements `Group` for a model that one rank computes."""

    rank = 0
    size = 1

    def all_reduce(self, x: Tensor) -> Tensor:
        """See Group."""
        return x

    def first_sum(self, x: Tensor) -> Tensor:
        """See Group."""
        return x

    def add_rms_norm(self, x: Tensor, residual: Tensor, norm: Norm, operations: Operations) -> Tensor:
        """See Group."""
        return operations.add_rms_norm(x, residual, norm.weight, norm.eps)

    def all_gather(self, x: Tensor) -> Tensor:
        """See Group."""
        return x[None]

    def choose(self, scores: Tensor, own: Choice, first: int) -> Choice:  # noqa: ARG002
        """See Group."""
        return own

    def copy_from_first(self, x: Tensor) -> None:
        """See Group."""


def of_first(group: Group, *parts: Tensor) -> Sequence[Tensor]:
    """What rank 0 has of these integers [R, …], in one exchange, before which no rank is done: see Group.first_sum."""
    if group.size == 1:
        return parts
    packed = torch.cat([part.reshape(len(part), -1).to(torch.int64) for part in parts], dim=1)
    columns = torch.split(group.all_gather(packed)[0], [part[:1].numel() for part in parts], dim=1)
    return [column.reshape(part.shape).to(part.dtype) for column, part in zip(columns, parts, strict=True)]


def choose_gathered(group: Group, scores: Tensor, own: Choice, first: int) -> Choice:
    """`Group.choose` by way of `all_gather`."""
    value = scores.gather(1, own.token_ids[:, None])[:, 0].float()
    # Tokens are exact in float32, and NaN comes before all others.
    mine = torch.stack([torch.where(own.usable, value, torch.nan), (own.token_ids + first).float()])
    values, token_ids = group.all_gather(mine).unbind(1)
    best, rank = values.max(dim=0)  # the first of equals
    return Choice(token_ids.gather(0, rank[None])[0].to(torch.int64), best.isfinite())


ALONE: Group = Alone()
