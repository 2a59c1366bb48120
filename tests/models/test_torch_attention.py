"""The torch back end against the definition of attention."""

import dataclasses

import numpy as np
import pytest
import torch

from corymb.kernels import reference_attention
from corymb.kernels.attention import AttentionSpec
from corymb.kernels.single_queries import group_by_length
from corymb.kernels.torch_attention import TorchAttention
from corymb.models.sequences import Sequences

CONTEXT = 700
STEPS = [
    {1: 37, 2: 1, 3: 600},  # long enough for two blocks of queries
    {1: 1, 2: 1, 3: 1},
    {2: 50, 1: 1, 4: 3},
    {4: 1, 3: 20, 2: 1, 1: 1},
    {1: 1, 4: 1, 3: 1, 2: 1},
]
SPECS = {
    "multi-head": AttentionSpec(4, 4, 16, 0.25),
    "grouped": AttentionSpec(6, 2, 16, 0.25),
    "one key head": AttentionSpec(4, 1, 32, 0.1),
    "window": AttentionSpec(6, 2, 16, 0.25, window=33),
    "window of one": AttentionSpec(2, 2, 16, 0.25, window=1),
    "soft cap": AttentionSpec(6, 2, 16, 1.0, soft_cap=2.0),
    "sinks": AttentionSpec(6, 2, 16, 0.25, sinks=torch.linspace(-2, 3, 6)),
    "window, soft cap and sinks": AttentionSpec(6, 2, 16, 1.0, 20, 2.0, sinks=torch.linspace(-2, 3, 6)),
    "window and soft cap": AttentionSpec(6, 2, 16, 1.0, window=20, soft_cap=2.0),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("spec", SPECS.values(), ids=SPECS)
def test_every_step_equals_the_definition(spec: AttentionSpec, dtype: torch.dtype) -> None:
    sequences = Sequences.empty([spec], num_rows=5, context_length=CONTEXT)
    cache = dataclasses.replace(
        sequences.kv[0], keys=sequences.kv[0].keys.to(dtype), values=sequences.kv[0].values.to(dtype)
    )
    generator = torch.Generator().manual_seed(1)
    attention = TorchAttention()
    for step in STEPS:
        layout = sequences.layout(list(step), list(step.values()))
        q, k, v = random_heads(spec, layout.num_tokens, dtype, generator)
        attention.plan(layout)
        out = attention.run(q, k, v, spec, cache)
        sequences.lengths[list(step)] += list(step.values())
        expected = reference_attention.attend(q, layout, spec, cache)
        assert out.dtype == dtype
        assert torch.equal(cache.keys[layout.slots if spec.window is None else layout.sliding_slots], k)
        torch.testing.assert_close(out.double(), expected, atol=2e-6 if dtype == torch.float32 else 3e-2, rtol=0)


@pytest.mark.parametrize("spec", SPECS.values(), ids=SPECS)
def test_row_gives_the_same_bits_whatever_runs_beside_it(spec: AttentionSpec) -> None:
    generator = torch.Generator().manual_seed(2)
    heads = {row: random_heads(spec, CONTEXT, torch.float32, generator) for row in (1, 2, 3)}
    widths = {1: [33, 1, 1, 7, 1], 2: [500, 1, 1, 1, 1], 3: [1, 1, 80, 1, 1]}
    alone = {row: outputs(spec, {row: heads[row]}, {row: widths[row]})[row] for row in heads}
    together = outputs(spec, heads, widths)
    for row in heads:
        assert torch.equal(alone[row], together[row]), row


def outputs(spec: AttentionSpec, heads: dict, widths: dict) -> dict[int, torch.Tensor]:
    """Attention's outputs of each row when these rows run together."""
    sequences = Sequences.empty([spec], num_rows=4, context_length=CONTEXT)
    attention = TorchAttention()
    out = {row: [] for row in heads}
    for step in range(5):
        step_widths = [widths[row][step] for row in heads]
        layout = sequences.layout(list(heads), step_widths)
        spans = [
            range(start, start + width) for start, width in zip(layout.host_starts, layout.host_widths, strict=True)
        ]
        q, k, v = (
            torch.cat([heads[row][part][span.start : span.stop] for row, span in zip(heads, spans, strict=True)])
            for part in range(3)
        )
        attention.plan(layout)
        result = attention.run(q, k, v, spec, sequences.kv[0])
        for row, part in zip(heads, result.split(step_widths), strict=True):
            out[row].append(part.clone())
        sequences.lengths[list(heads)] += step_widths
    return {row: torch.cat(parts) for row, parts in out.items()}


def random_heads(
    spec: AttentionSpec, num_tokens: int, dtype: torch.dtype, generator: torch.Generator
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Queries, keys and values, as a fused projection leaves them: strided."""
    num_heads = spec.num_heads + 2 * spec.num_kv_heads
    heads = torch.randn(num_tokens, num_heads, spec.head_dim, generator=generator).to(dtype)
    return heads.split((spec.num_heads, spec.num_kv_heads, spec.num_kv_heads), dim=1)


def test_groups_hold_every_row_once_and_waste_little() -> None:
    rng = np.random.default_rng(3)
    for _ in range(100):
        lengths = rng.integers(1, rng.integers(2, 5000), size=rng.integers(1, 40)).astype(np.int32)
        groups = group_by_length(lengths)
        assert sorted(np.concatenate(groups)) == list(range(len(lengths)))
        for group in groups:
            assert lengths[group].max() * len(group) <= 1.6 * lengths[group].sum() + 32 * len(group)
