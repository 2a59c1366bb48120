"""The tensors that hold keys and values: one pair a layer, in the full or in the sliding pool."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from corymb.cache.config import CacheConfig
from corymb.kernels.attention import AttentionSpec, KVLayer


@dataclass(frozen=True, slots=True)
class TokenBytes:
    """What one token costs in each pool, over all its layers."""

    full: int
    sliding: int


def token_bytes(specs: Sequence[AttentionSpec], dtype: torch.dtype) -> TokenBytes:
    """The cost of a token for a model with these layers."""
    full = sum(_elements(spec) for spec in specs if spec.window is None)
    sliding = sum(_elements(spec) for spec in specs if spec.window is not None)
    return TokenBytes(full * dtype.itemsize, sliding * dtype.itemsize)


def allocate(
    specs: Sequence[AttentionSpec], config: CacheConfig, *, dtype: torch.dtype, device: torch.device
) -> list[KVLayer]:
    """Makes zeroed pools, one `KVLayer` a spec, with the reserved page on top of the configured tokens.

    Zeroed, because a back end may multiply what it read from unused slots by 0, and NaN would survive that.
    """
    num_full = config.num_full_tokens + config.page_size
    num_sliding = config.num_sliding_tokens + config.page_size
    layers = []
    for spec in specs:
        shape = (num_full if spec.window is None else num_sliding, spec.num_kv_heads, spec.head_dim)
        layers.append(KVLayer(_zeros(shape, dtype, device), _zeros(shape, dtype, device)))
    return layers


def _elements(spec: AttentionSpec) -> int:
    return 2 * spec.num_kv_heads * spec.head_dim


def _zeros(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    if device.type != "cpu":
        return torch.zeros(shape, dtype=dtype, device=device)
    # numpy takes zero pages from the kernel, which cost neither memory nor time until they are written.
    num_bytes = int(np.prod(shape)) * dtype.itemsize
    return torch.from_numpy(np.zeros(num_bytes, np.uint8)).view(dtype).view(shape)
