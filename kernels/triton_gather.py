"""Copies the keys and values that a step reads out of the pool, one row's after another's, as numbers of the model."""

import triton.language as tl
from torch import Tensor

from corymb.kernels.attention import KVLayer
from corymb.kernels.triton_jit import Count, Launch, jit, next_power_of_2

BLOCK_NUMBERS = 8192  # of keys, of one program


# fmt: off
@jit
def copy_slots(
    keys: tl.tensor, values: tl.tensor, slots: tl.tensor, key_out: tl.tensor, value_out: tl.tensor,
    num_slots: "Count", slot_stride: tl.tensor, key_scale: tl.tensor, value_scale: tl.tensor,
    SIZE: tl.constexpr, BLOCK: tl.constexpr, ROWS: tl.constexpr, SCALED: tl.constexpr,
) -> None:
    """Program b copies slots [b × ROWS, …): SIZE numbers each, that lie together on both sides."""
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    index = tl.arange(0, BLOCK)
    wanted = (row < num_slots)[:, None] & (index < SIZE)[None, :]
    slot = tl.load(slots + row, mask=row < num_slots, other=0).to(tl.int64)
    key = tl.load(keys + slot[:, None] * slot_stride + index[None, :], mask=wanted, other=0.0)
    value = tl.load(values + slot[:, None] * slot_stride + index[None, :], mask=wanted, other=0.0)
    if SCALED:
        key = key.to(tl.float32) * key_scale
        value = value.to(tl.float32) * value_scale
    place = row.to(tl.int64)[:, None] * SIZE + index[None, :]
    tl.store(key_out + place, key.to(key_out.dtype.element_ty), mask=wanted)
    tl.store(value_out + place, value.to(value_out.dtype.element_ty), mask=wanted)
# fmt: on


def gather_heads(cache: KVLayer, slots: Tensor, key_out: Tensor, value_out: Tensor, *, launch: Launch) -> None:
    """Fills key_out and value_out [N, num_kv_heads, head_dim] with what `slots` int32 [N] of the pool hold."""
    num_slots, num_kv_heads, head_dim = key_out.shape
    size = num_kv_heads * head_dim
    block = next_power_of_2(size)
    rows = max(BLOCK_NUMBERS // block, 1)
    copy_slots[(-(-num_slots // rows),)](
        cache.keys,
        cache.values,
        slots,
        key_out,
        value_out,
        num_slots,
        cache.keys.stride(0),
        cache.key_scale,
        cache.value_scale,
        SIZE=size,
        BLOCK=block,
        ROWS=rows,
        SCALED=cache.keys.dtype.itemsize == 1,
        **launch.plain(num_warps=8),
    )
