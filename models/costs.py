"""What a model and what drafts for it take: in all, and for each token."""

from dataclasses import dataclass, replace

import torch

from corymb.models.blueprint import Blueprint
from corymb.models.load import TORCH_DTYPES
from corymb.models.pools import token_bytes
from corymb.models.precision import Precision
from corymb.models.sizing import TokenBytes
from corymb.models.speculation import Speculation


@dataclass(frozen=True, slots=True)
class Costs:
    """Bytes."""

    of_tokens: TokenBytes
    weights_bytes: int


def costs_of(
    blueprint: Blueprint, speculation: Speculation | None, precision: Precision, pool_dtype: torch.dtype
) -> Costs:
    """Costs of a model that is not loaded yet."""
    dtype = TORCH_DTYPES[precision.compute]
    state, record = (
        sum(spec.size_bytes(dtype) for spec in specs) for specs in (blueprint.state_specs, blueprint.record_specs)
    )
    specs, weights_bytes = [*blueprint.attention_specs], blueprint.weights_bytes
    if speculation:
        specs += speculation.attention_specs
        weights_bytes += speculation.weights_bytes(precision)
    return Costs(replace(token_bytes(specs, pool_dtype), state=state, record=record), weights_bytes)
