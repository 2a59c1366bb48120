"""The tensors that hold keys and values, or latents and index keys, of each layer: in the full or the sliding pool."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

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
        layers.append(kv_layer(spec, num_slots, lambda shape: place.zeros(shape, dtype)))
    return layers


def kv_layer(spec: AttentionSpec, num_slots: int, make: Callable[[tuple[int, ...]], Tensor]) -> KVLayer:
    """One layer's tensors, each made from its shape."""
    shape = (num_slots, spec.num_kv_heads, spec.head_dim)
    keys = make(shape)
    values = make(shape) if spec.latent_dim is None else keys[..., : spec.latent_dim]
    return KVLayer(keys, values, index_keys=make((num_slots, spec.index.head_dim)) if spec.index else None)


def _elements(spec: AttentionSpec) -> int:
    if spec.latent_dim is None:
        return 2 * spec.num_kv_heads * spec.head_dim
    return spec.head_dim + (spec.index.head_dim if spec.index else 0)
