"""Blocks that see each other both ways, and what lies before them in a paged pool, against plain torch."""

import pytest
import torch
from torch import Tensor

from corymb.kernels.attention import AttentionSpec, KVLayer
from corymb.kernels.block_attention import BlockHeads, Contexts, TorchBlocks
from corymb.kernels.triton_block_attention import TritonBlocks


def make(place, spec: AttentionSpec, num_slots: int, lengths: list[int], dtype: torch.dtype):
    """Blocks behind rows of these lengths, in a pool that is NaN elsewhere."""
    count = sum(lengths) + 9
    slots = torch.randperm(count - 1, generator=place.generator)[: sum(lengths)] + 1
    table = torch.full((len(lengths) + 1, max(lengths) + 3), -(1 << 20), dtype=torch.int32)
    rows = torch.randperm(len(lengths), generator=place.generator) + 1
    taken = 0
    for row, length in zip(rows.tolist(), lengths, strict=True):
        table[row, :length] = slots[taken : taken + length]
        taken += length
    pools: list[Tensor] = []
    for _ in range(2):
        pool = torch.full((count, spec.num_kv_heads, spec.head_dim), torch.nan, dtype=dtype, device=place.device)
        pool[slots.to(place.device)] = place.normal(len(slots), spec.num_kv_heads, spec.head_dim, dtype=dtype)
        pools.append(pool)
    blocks = (len(lengths), num_slots)
    heads = BlockHeads(
        place.normal(*blocks, spec.num_heads, spec.head_dim, dtype=dtype),
        *(place.normal(*blocks, spec.num_kv_heads, spec.head_dim, dtype=dtype) for _ in range(2)),
    )
    here = [tensor.to(place.device) for tensor in (table, rows, torch.tensor(lengths, dtype=torch.int32))]
    return heads, Contexts(*here), KVLayer(*pools)


def check(place, spec, num_slots, lengths, *, causal=False, dtype=torch.float32, tolerance=1e-5) -> None:
    heads, contexts, cache = make(place, spec, num_slots, lengths, dtype)
    ours, theirs = TritonBlocks(place.launch), TorchBlocks()
    ours.plan(contexts)
    theirs.plan(contexts)
    found = ours.attend(heads, cache, spec=spec, causal=causal)
    wide = BlockHeads(heads.queries.float(), heads.keys.float(), heads.values.float())
    pool = KVLayer(cache.keys.float(), cache.values.float())
    place.assert_close(found, theirs.attend(wide, pool, spec=spec, causal=causal), tolerance)


@pytest.mark.parametrize(("window", "causal"), [(None, False), (6, True), (6, False), (40, True)])
def test_blocks_are_those_of_plain_torch(place, window, causal) -> None:
    spec = AttentionSpec(num_heads=6, num_kv_heads=2, head_dim=12, scale=0.3, window=window)
    check(place, spec, 5, [1, 16, 23], causal=causal)


def test_a_group_of_one_head_and_a_block_of_one_slot(place) -> None:
    check(place, AttentionSpec(num_heads=2, num_kv_heads=2, head_dim=16, scale=0.25), 1, [3])


@pytest.mark.gpu
@pytest.mark.parametrize("shape", [(9, 3, 64, 5), (32, 8, 128, 7), (32, 8, 128, 16)])
def test_blocks_of_real_sizes(place, tolerance, shape) -> None:
    num_heads, num_kv_heads, head_dim, num_slots = shape
    spec = AttentionSpec(num_heads=num_heads, num_kv_heads=num_kv_heads, head_dim=head_dim, scale=head_dim**-0.5)
    lengths = [1, 63, 64, 65, 700, 2048]
    check(place, spec, num_slots, lengths, dtype=torch.bfloat16, tolerance=tolerance(torch.bfloat16))
