"""Which drafts of many rows are the likeliest, in plain torch, without waiting for the device."""

from typing import Protocol

import torch
from torch import Tensor


class Allot(Protocol):
    """A back end."""

    def __call__(self, survivals: Tensor, most: Tensor, budget: int, *, least: float) -> Tensor:
        """Windows int32 [R] of the `budget` largest survivals float32 [R, P], which do not rise along a row, at most
        `most` int32 [R] of a row's and none below `least`, which is above 0. Ties go to the earlier place, then to the
        earlier row."""
        ...


def allot(survivals: Tensor, most: Tensor, budget: int, *, least: float) -> Tensor:
    """See Allot."""
    num_rows, num_drafts = survivals.shape
    places = torch.arange(num_drafts, device=survivals.device)
    possible = (places < most[:, None]) & (survivals >= least)
    # By place, then by row: a stable sort leaves equals in this order.
    listed = torch.where(possible, survivals, -1.0).T.reshape(-1)
    order = listed.argsort(descending=True, stable=True)[:budget]
    windows = torch.zeros(num_rows, dtype=torch.int32, device=survivals.device)
    return windows.index_add_(0, order % num_rows, possible.T.reshape(-1)[order].int())
