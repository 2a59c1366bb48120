"""Stores new tokens' keys and values in a pool."""

import triton.language as tl
from torch import Tensor

from corymb.kernels.attention import KVLayer
from corymb.kernels.triton_jit import Launch, jit, next_power_of_2

# The largest finite number of each 8-bit format: a larger value would become infinite or NaN.
FP8_LIMITS = {"float8_e4m3fn": 448.0, "float8_e5m2": 57344.0}


@jit
def to_cache(value: tl.tensor, inverse_scale: tl.tensor, LIMIT: tl.constexpr, dtype: tl.constexpr) -> tl.tensor:
    """A key or value as the pool keeps it."""
    if LIMIT > 0:
        value = tl.clamp(value.to(tl.float32) * inverse_scale, -LIMIT, LIMIT)
    return value.to(dtype)


@jit
def store_slots(
    k: tl.tensor,
    v: tl.tensor,
    keys: tl.tensor,
    values: tl.tensor,
    slots: tl.tensor,
    k_stride: tl.tensor,
    v_stride: tl.tensor,
    slot_stride: tl.tensor,
    inverse_key_scale: tl.tensor,
    inverse_value_scale: tl.tensor,
    LIMIT: tl.constexpr,
    SIZE: tl.constexpr,
    BLOCK: tl.constexpr,
    EARLY: tl.constexpr,
) -> None:
    """Program t stores token t: SIZE = KV heads × head size numbers that lie together on both sides."""
    if EARLY:
        tl.extra.cuda.gdc_wait()
        tl.extra.cuda.gdc_launch_dependents()
    token = tl.program_id(0).to(tl.int64)
    slot = tl.load(slots + token).to(tl.int64)
    index = tl.arange(0, BLOCK)
    inside = index < SIZE
    key = tl.load(k + token * k_stride + index, mask=inside, other=0.0)
    value = tl.load(v + token * v_stride + index, mask=inside, other=0.0)
    key = to_cache(key, inverse_key_scale, LIMIT, keys.dtype.element_ty)
    value = to_cache(value, inverse_value_scale, LIMIT, values.dtype.element_ty)
    tl.store(keys + slot * slot_stride + index, key, mask=inside)
    tl.store(values + slot * slot_stride + index, value, mask=inside)


def fp8_limit(cache: KVLayer) -> float:
    """The largest number that the pool holds, or 0 where it needs no clamping."""
    return FP8_LIMITS.get(str(cache.keys.dtype).removeprefix("torch."), 0.0)


def store(k: Tensor, v: Tensor, cache: KVLayer, slots: Tensor, *, launch: Launch) -> None:
    """Writes k and v [T, num_kv_heads, head_dim] to `slots` [T] of the pool, divided by the layer's scales."""
    num_tokens, num_kv_heads, head_dim = k.shape
    size = num_kv_heads * head_dim
    store_slots[(num_tokens,)](
        k,
        v,
        cache.keys,
        cache.values,
        slots,
        k.stride(0),
        v.stride(0),
        cache.keys.stride(0),
        1.0 / cache.key_scale,
        1.0 / cache.value_scale,
        LIMIT=fp8_limit(cache),
        SIZE=size,
        BLOCK=next_power_of_2(size),
        EARLY=launch.early,
        **launch.options(num_warps=4),
    )
