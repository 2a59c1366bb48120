"""Which drafts are verified: the budget's best, by what is thought of them today."""

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from corymb.kernels.allotting import Allot
from corymb.models.speculation import Proposal
from corymb.scheduler.plan import Int32

Float32 = NDArray[np.float32]

LEAST_SURVIVAL = 1e-6  # below, a draft is not worth a token


def survival(confidence: Float32) -> Float32:
    """The chance of each draft that it and all before it in its row are accepted, from conditional ones [R, P]."""
    return np.cumprod(confidence, axis=1, dtype=np.float32)


def allot(survivals: Float32, most: Int32, budget: int | None) -> Int32:
    """Windows [R] that hold the `budget` likeliest drafts, from `survivals` [R, P] that do not rise along a row; None
    for all that have a chance. Ties go to the earlier place, then to the earlier row: what a draft says decides none.

    The best of all drafts are beginnings of rows, so for a given budget no windows hold more survivals (dspark.md D.1).
    """
    num_rows, num_drafts = survivals.shape
    places = np.broadcast_to(np.arange(num_drafts), survivals.shape)
    possible = (places < most[:, None]) & (survivals >= LEAST_SURVIVAL)
    rows = np.broadcast_to(np.arange(num_rows)[:, None], survivals.shape)[possible]
    order = np.lexsort((rows, places[possible], -survivals[possible]))
    return np.bincount(rows[order[:budget]], minlength=num_rows).astype(np.int32)


class Compact:
    """An Allotment that verifies no more than the budget."""

    checks_all = False

    def allot(self, proposal: Proposal, most: Int32, budget: int | None) -> Int32:
        """See Allotment."""
        if budget is None:
            return most
        if proposal.confidence is None:
            certain = np.ones(proposal.token_ids.shape, np.float32)
            return allot(certain, most, budget)
        return allot(survival(proposal.confidence.float().cpu().numpy()), most, budget)

    def allot_on_device(self, proposal: Proposal, most: Tensor, budget: int | None, by: Allot) -> Tensor:
        """See Allotment."""
        if budget is None:
            return most
        if proposal.confidence is None:
            certain = torch.ones(proposal.token_ids.shape, device=most.device)
            return by(certain, most, budget, least=LEAST_SURVIVAL)
        return by(proposal.confidence.float().cumprod(dim=1), most, budget, least=LEAST_SURVIVAL)


class CapAccept(Compact):
    """Verifies everything and accepts what `Compact` would: shows what the budget gives away, and saves nothing."""

    checks_all = True
