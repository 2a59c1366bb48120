"""Attention to latents and the choice of keys, in plain torch, against their definitions."""

import dataclasses

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from corymb.kernels import reference_attention
from corymb.kernels.attention import AttentionSpec, IndexSpec
from corymb.kernels.torch_attention import TorchAttention
from corymb.models.sequences import Sequences

TOP_K = 20
DENSE = AttentionSpec(5, 1, 24, 0.3, latent_dim=16)
SPARSE = dataclasses.replace(DENSE, index=IndexSpec(3, 8, TOP_K))
STEPS = [{1: 37, 2: 1, 3: 90}, {1: 1, 2: 1, 3: 1}, {2: 30, 1: 1, 4: 3}, {4: 1, 3: 20, 2: 1, 1: 1}]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_every_step_attends_to_latents_as_defined(dtype: torch.dtype) -> None:
    sequences, attention = Sequences.empty([DENSE], num_rows=5, context_length=128), TorchAttention()
    cache = dataclasses.replace(sequences.kv[0], keys=sequences.kv[0].keys.to(dtype))
    cache = dataclasses.replace(cache, values=cache.keys[..., : DENSE.latent_dim])
    generator = torch.Generator().manual_seed(1)
    for step in STEPS:
        layout = sequences.layout(list(step), list(step.values()))
        q = torch.randn((layout.num_tokens, 5, 24), generator=generator).to(dtype)
        latents = torch.randn((layout.num_tokens, 24), generator=generator).to(dtype)
        attention.plan(layout)
        out = attention.run_latent(q, latents, DENSE, cache, None)
        sequences.lengths[list(step)] += list(step.values())
        expected = reference_attention.attend(q, layout, DENSE, cache)
        assert out.dtype == dtype
        torch.testing.assert_close(out.double(), expected, atol=2e-6 if dtype == torch.float32 else 3e-2, rtol=0)


@pytest.mark.parametrize("step_number", range(len(STEPS)))
def test_every_step_attends_to_what_its_index_chose(step_number: int) -> None:
    sequences, attention = Sequences.empty([SPARSE], num_rows=5, context_length=128), TorchAttention()
    cache = sequences.kv[0]
    generator = torch.Generator().manual_seed(step_number)
    for step in STEPS[: step_number + 1]:
        layout = sequences.layout(list(step), list(step.values()))
        q, latents, index_q, weights, index_keys = (
            torch.randn((layout.num_tokens, *shape), generator=generator)
            for shape in ((5, 24), (24,), (3, 8), (3,), (8,))
        )
        attention.plan(layout)
        chosen = attention.choose(index_q, weights, index_keys, SPARSE, cache)
        out = attention.run_latent(q, latents, SPARSE, cache, chosen)
        sequences.lengths[list(step)] += list(step.values())
    assert cache.index_keys is not None
    positions = reference_attention.choose(index_q, weights, layout, cache.index_keys, TOP_K)
    rows = np.repeat(layout.host_rows, layout.host_widths).tolist()
    for token, row in enumerate(rows):
        count = int(chosen.counts[token])
        assert chosen.slots[token, :count].tolist() == layout.table[row, positions[token]].tolist()
    expected = reference_attention.attend(q, layout, SPARSE, cache, positions)
    torch.testing.assert_close(out.double(), expected, atol=2e-6, rtol=0)


@given(
    keys=st.lists(st.integers(-1, 1), min_size=30, max_size=60),
    width=st.integers(1, 8),
    sign=st.sampled_from([-1.0, 1.0]),
)
def test_the_earlier_of_equal_keys_is_chosen_whatever_their_score(keys: list[int], width: int, sign: float) -> None:
    spec = dataclasses.replace(DENSE, index=IndexSpec(1, 1, 9))
    sequences, attention = Sequences.empty([spec], num_rows=2, context_length=64), TorchAttention()
    cache = sequences.kv[0]
    for widths in (len(keys) - width, width):
        layout = sequences.layout([1], [widths])
        attention.plan(layout)
        start = int(sequences.lengths[1])
        new = torch.tensor(keys[start : start + widths], dtype=torch.float32)[:, None]
        index_q, weights = torch.ones(widths, 1, 1), torch.full((widths, 1), sign)
        chosen = attention.choose(index_q, weights, new, spec, cache)
        sequences.lengths[1] += widths
    assert cache.index_keys is not None
    expected = reference_attention.choose(index_q, weights, layout, cache.index_keys, 9)
    slots = [layout.table[1, positions].tolist() for positions in expected]
    assert [one[:count] for one, count in zip(chosen.slots.tolist(), chosen.counts.tolist(), strict=True)] == slots
