"""How a model's products are made: what fits a device and its types."""

from dataclasses import dataclass

import torch

from corymb.models.experts import MakeExperts, SeparateExperts
from corymb.models.heads import MakeHeadLinear, SeparateHeads
from corymb.models.linear import MakeLinear, exact_linear_for, linear_for
from corymb.models.precision import WeightType


@dataclass(frozen=True, slots=True)
class Makers:
    """Makes products of each kind."""

    linear: MakeLinear
    exact: MakeLinear  # of float32 weights, whatever the others are: for decisions that rounding would flip
    experts: MakeExperts
    heads: MakeHeadLinear


def makers_for(device: torch.device, compute: torch.dtype, weights: WeightType) -> Makers:
    """What torch and its libraries do."""
    linear = linear_for(device, compute, weights)
    return Makers(linear, exact_linear_for(device), SeparateExperts(linear), SeparateHeads(linear))
