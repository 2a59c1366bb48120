"""Attention of blocks in Triton: a program attends with all of a block's queries that share a key head, first to what
lies before the block, found through the page table, then to the block itself."""

import torch
import triton.language as tl
from torch import Tensor

from corymb.kernels.attention import AttentionSpec, KVLayer
from corymb.kernels.block_attention import BlockHeads, Contexts
from corymb.kernels.triton_blocks import score
from corymb.kernels.triton_jit import Launch, jit, next_power_of_2

LOG2E = 1.4426950408889634
SMALLEST = 16  # side of a product
BLOCK_N = 64  # keys


# fmt: off
@jit
def fold(
    query: tl.tensor, key: tl.tensor, value: tl.tensor, seen: tl.tensor, top: tl.tensor, norm: tl.tensor,
    total: tl.tensor, scale: tl.tensor, WIDEN: tl.constexpr,
) -> tl.tensor:
    """Takes some keys more into the running maximum, sum and weighted sum of values."""
    logits = tl.where(seen, score(query, key, scale, 0.0, WIDEN), float("-inf"))
    new_top = tl.maximum(top, tl.max(logits, 1))
    anchor = tl.where(new_top == float("-inf"), 0.0, new_top)  # -inf - -inf would be NaN
    weights = tl.exp2(logits - anchor[:, None])
    shrink = tl.exp2(top - anchor)
    norm = norm * shrink + tl.sum(weights, 1)
    if WIDEN:
        total = total * shrink[:, None] + tl.dot(weights, value.to(tl.float32))
    else:
        narrow = weights.to(query.dtype)
        total = tl.dot(narrow, value.to(query.dtype), total * shrink[:, None], input_precision="ieee")
    return new_top, norm, total


@jit
def attend_blocks(
    queries: tl.tensor, new_keys: tl.tensor, new_values: tl.tensor, out: tl.tensor, keys: tl.tensor, values: tl.tensor,
    table: tl.tensor, rows: tl.tensor, lengths: tl.tensor, scale: tl.tensor, slot_stride: tl.tensor,
    table_stride: tl.tensor,
    NUM_KV_HEADS: tl.constexpr, GROUP: tl.constexpr, SLOTS: tl.constexpr, HEAD_DIM: tl.constexpr,
    BLOCK_D: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_S: tl.constexpr,
    WINDOW: tl.constexpr, CAUSAL: tl.constexpr, WIDEN: tl.constexpr,
) -> None:
    """Program (r, h): block r, key head h. Query m is head m % GROUP of the block's slot m // GROUP."""
    block = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1)
    length = tl.load(lengths + block)
    line = table + tl.load(rows + block) * table_stride
    dim = tl.arange(0, BLOCK_D)
    inside = (dim < HEAD_DIM)[None, :]
    query_slot = tl.arange(0, BLOCK_M) // GROUP
    query_head = head * GROUP + tl.arange(0, BLOCK_M) % GROUP
    place = ((block * SLOTS + query_slot) * (NUM_KV_HEADS * GROUP) + query_head)[:, None] * HEAD_DIM + dim[None, :]
    wanted = (query_slot < SLOTS)[:, None] & inside
    query = tl.load(queries + place, mask=wanted, other=0.0)
    position = (length + query_slot)[:, None]
    top = tl.full([BLOCK_M], float("-inf"), tl.float32)
    norm = tl.zeros([BLOCK_M], tl.float32)
    total = tl.zeros([BLOCK_M, BLOCK_D], tl.float32)
    first = length * 0
    if WINDOW > 0:
        first = tl.maximum(length - WINDOW + 1, 0)  # of the block's first slot; the others see fewer
    for start in range(first, length, BLOCK_N):
        key_position = start + tl.arange(0, BLOCK_N)
        present = key_position < length
        slot = tl.load(line + key_position, mask=present, other=0).to(tl.int64)
        source = slot[:, None] * slot_stride + head * HEAD_DIM + dim[None, :]
        # What lies in other slots may not even be a number.
        key = tl.load(keys + source, mask=present[:, None] & inside, other=0.0)
        value = tl.load(values + source, mask=present[:, None] & inside, other=0.0)
        seen = present[None, :] & (query_slot >= 0)[:, None]
        if WINDOW > 0:
            seen &= key_position[None, :] > position - WINDOW
        top, norm, total = fold(query, key, value, seen, top, norm, total, scale, WIDEN)
    own = tl.arange(0, BLOCK_S)
    source = ((block * SLOTS + own) * NUM_KV_HEADS + head)[:, None] * HEAD_DIM + dim[None, :]
    key = tl.load(new_keys + source, mask=(own < SLOTS)[:, None] & inside, other=0.0)
    value = tl.load(new_values + source, mask=(own < SLOTS)[:, None] & inside, other=0.0)
    seen = (own < SLOTS)[None, :] & (query_slot >= 0)[:, None]
    if WINDOW > 0:
        seen &= (length + own)[None, :] > position - WINDOW
        if CAUSAL:
            seen &= own[None, :] <= query_slot[:, None]
    top, norm, total = fold(query, key, value, seen, top, norm, total, scale, WIDEN)
    tl.store(out + place, (total / norm[:, None]).to(out.dtype.element_ty), mask=wanted)
# fmt: on


class TritonBlocks:
    """A BlockAttention that never waits for the device; every launch may be captured in a CUDA graph."""

    def __init__(self, launch: Launch) -> None:
        self._launch = launch
        self._contexts: Contexts | None = None

    def plan(self, contexts: Contexts) -> None:
        """See BlockAttention."""
        self._contexts = contexts

    def attend(self, heads: BlockHeads, cache: KVLayer, *, spec: AttentionSpec, causal: bool) -> Tensor:
        """See BlockAttention."""
        contexts = self._contexts
        assert contexts is not None, "plan comes before attend"
        queries = heads.queries.contiguous()
        num_blocks, num_slots = queries.shape[:2]
        group = spec.num_heads // spec.num_kv_heads
        out = torch.empty(queries.shape, dtype=queries.dtype, device=queries.device)
        block_d = max(next_power_of_2(spec.head_dim), SMALLEST)
        attend_blocks[(num_blocks, spec.num_kv_heads)](
            queries,
            heads.keys.contiguous(),
            heads.values.contiguous(),
            out,
            cache.keys,
            cache.values,
            contexts.table,
            contexts.rows,
            contexts.lengths,
            spec.scale * LOG2E,
            cache.keys.stride(0),
            contexts.table.stride(0),
            NUM_KV_HEADS=spec.num_kv_heads,
            GROUP=group,
            SLOTS=num_slots,
            HEAD_DIM=spec.head_dim,
            BLOCK_D=block_d,
            BLOCK_M=max(next_power_of_2(num_slots * group), SMALLEST),
            BLOCK_N=SMALLEST if self._launch.interpreted else BLOCK_N,
            BLOCK_S=max(next_power_of_2(num_slots), SMALLEST),
            WINDOW=spec.window or 0,
            CAUSAL=causal,
            WIDEN=self._launch.interpreted,
            **self._launch.plain(num_warps=4),
        )
        return out
