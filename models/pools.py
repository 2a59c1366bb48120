"""The tensors that hold keys and values: one pair a layer, in the full or in the sliding pool."""

from collections.abc import Sequence

import torch

from corymb.cache.config import CacheConfig
from corymb.kernels.attention import AttentionSpec, KVLayer
from corymb.models.placement import Place
from corymb.models.sizing import TokenBytes


def token_bytes(specs: Sequence[AttentionSpec], dtype: torch.dtype) -> TokenBytes:
    """The cost of a token for a model with these layers."""
    full = sum(_elements(spec) for spec in specs if spec.window is None)
    sliding = sum(_elements(spec) for spec in specs if spec.window is not None)
    return TokenBytes(full * dtype.itemsize, sliding * dtype.itemsize)


def allocate(specs: Sequence[AttentionSpec], config: CacheConfig, *, dtype: torch.dtype, place: Place) -> list[KVLayer]:
    """Makes zeroed pools, one `KVLayer` a spec.

    Zeroed, because a back end may multiply what it read from unused slots by 0, and NaN would survive that.
    """
    layers = []
    for spec in specs:
        num_slots = config.num_full_tokens if spec.window is None else config.num_sliding_tokens
        shape = (num_slots, spec.num_kv_heads, spec.head_dim)
        layers.append(KVLayer(place.zeros(shape, dtype), place.zeros(shape, dtype)))
    return layers


def _elements(spec: AttentionSpec) -> int:
    return 2 * spec.num_kv_heads * spec.head_dim
