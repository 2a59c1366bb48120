"""The fused operations against their plain versions, over outputs poisoned with NaN."""

from dataclasses import replace

import pytest
import torch

from corymb.kernels.attention import AttentionSpec, HeadChanges, HeadNorms
from corymb.kernels.reference_attention import attend
from corymb.kernels.torch_operations import TorchOperations
from corymb.kernels.triton_attention import Limits, TritonAttention
from corymb.kernels.triton_operations import TritonOperations

PLAIN = TorchOperations()
SHAPES = [(3, 48), (1, 576), pytest.param((257, 4096), marks=pytest.mark.gpu)]
DTYPES = [torch.float32, torch.bfloat16]


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("dtype", DTYPES)
def test_rms_norm(place, tolerance, shape, dtype) -> None:
    x, weight = place.normal(*shape, dtype=dtype), place.normal(shape[1])
    out = TritonOperations(place.launch).rms_norm(x, weight, 1e-5)
    place.assert_close(out, PLAIN.rms_norm(x, weight, 1e-5), tolerance(dtype))


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("dtype", DTYPES)
def test_add_rms_norm(place, tolerance, shape, dtype) -> None:
    x, residual = place.normal(*shape, dtype=dtype), place.normal(*shape, dtype=dtype)
    weight, expected_sum = place.normal(shape[1]), residual.clone()
    out = TritonOperations(place.launch).add_rms_norm(x, residual, weight, 1e-6)
    expected = PLAIN.add_rms_norm(x, expected_sum, weight, 1e-6)
    place.assert_close(residual, expected_sum, tolerance(dtype))
    place.assert_close(out, expected, tolerance(dtype))


@pytest.mark.parametrize("shape", [(3, 70), pytest.param((129, 28672), marks=pytest.mark.gpu)])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", ["silu_mul", "gelu_tanh_mul"])
def test_gated_activations(place, tolerance, shape, dtype, name) -> None:
    gate_up = place.normal(*shape, dtype=dtype, scale=3.0)
    fast = TritonOperations(place.launch)
    actual = {"silu_mul": fast.silu_mul, "gelu_tanh_mul": fast.gelu_tanh_mul}
    expected = {"silu_mul": PLAIN.silu_mul, "gelu_tanh_mul": PLAIN.gelu_tanh_mul}
    place.assert_close(actual[name](gate_up.clone()), expected[name](gate_up.clone()), tolerance(dtype))


def test_activations_of_extreme_values_stay_finite(place) -> None:
    gate_up = torch.tensor([[-1e4, 1e4, -90.0, 1.0, 1.0, 1.0]], device=place.device)
    for activate in (TritonOperations(place.launch).silu_mul, TritonOperations(place.launch).gelu_tanh_mul):
        place.assert_close(activate(gate_up), torch.tensor([[0.0, 1e4, 0.0]], device=place.device))


@pytest.mark.parametrize("head_dim", [16, 24, 128])
@pytest.mark.parametrize("dtype", DTYPES)
def test_rope_in_place_on_a_part_of_the_heads(place, tolerance, head_dim, dtype) -> None:
    heads = place.normal(3, 7, head_dim, dtype=dtype)
    expected, turns = heads.clone(), place.normal(3, head_dim)
    TritonOperations(place.launch).rope(heads[:, :5], turns)
    PLAIN.rope(expected[:, :5], turns)
    place.assert_close(heads, expected, tolerance(dtype))
    assert torch.equal(heads[:, 5:], expected[:, 5:])


JOINED = [
    AttentionSpec(num_heads=4, num_kv_heads=2, head_dim=16, scale=0.25),
    AttentionSpec(num_heads=9, num_kv_heads=3, head_dim=24, scale=0.2, window=20),
    AttentionSpec(num_heads=6, num_kv_heads=2, head_dim=16, scale=0.9, soft_cap=3.0),
    pytest.param(AttentionSpec(num_heads=32, num_kv_heads=8, head_dim=128, scale=128**-0.5), marks=pytest.mark.gpu),
]


JOINED_STEPS = {"mixture": ([1, 5, 1], [30, 3, 64]), "decode": ([1, 1, 1, 1], [30, 0, 64, 150])}


@pytest.mark.parametrize("spec", JOINED)
@pytest.mark.parametrize("step", JOINED_STEPS)
@pytest.mark.parametrize("norms", [True, False])
@pytest.mark.parametrize("turned", [True, False])
@pytest.mark.parametrize("early", [False, pytest.param(True, marks=pytest.mark.gpu)])
def test_joined_attention_changes_stores_and_attends(
    place, make_case, tolerance, spec, step, norms, turned, early
) -> None:
    case = make_case(spec, *JOINED_STEPS[step])
    changes = HeadChanges(
        turns=place.normal(case.layout.num_tokens, spec.head_dim) if turned else None,
        norms=HeadNorms(place.normal(spec.head_dim), place.normal(spec.head_dim), 1e-5) if norms else None,
    )
    heads = torch.cat((case.q, case.k, case.v), dim=1)
    for new, weight in ((case.q, "query"), (case.k, "key")):
        if changes.norms is not None:
            new.copy_(PLAIN.rms_norm(new, getattr(changes.norms, weight), 1e-5))
        if changes.turns is not None:
            PLAIN.rope(new, changes.turns)
    limits, launch = Limits(max_rows=4, max_tokens=16), replace(place.launch, early=early)
    attention = TritonAttention([spec], limits, device=place.device, kv_dtype=torch.float32, launch=launch)
    for _ in range(2):  # the second run meets what the first left in pool and workspace
        attention.plan(case.layout)
        out = attention.run_joined(heads.clone(), changes, spec, case.cache)
    slots = case.layout.slots if spec.window is None else case.layout.sliding_slots
    place.assert_close(case.cache.keys[slots], case.k, 1e-6)
    assert torch.equal(case.cache.values[slots], case.v)
    place.assert_close(out, attend(case.q, case.layout, spec, case.stored()), tolerance(torch.float32))


@pytest.mark.parametrize("kv_dtype", [torch.float8_e4m3fn, torch.float8_e5m2])
def test_joined_attention_keeps_8_bit_keys_as_storing_them_does(place, make_case, tolerance, kv_dtype) -> None:
    spec = AttentionSpec(num_heads=4, num_kv_heads=2, head_dim=16, scale=0.25)
    case = make_case(spec, [1, 1, 1], [30, 0, 64], dtype=torch.float16, kv_dtype=kv_dtype, scales=(0.5, 2.0))
    limits = Limits(max_rows=4, max_tokens=16)
    attention = TritonAttention([spec], limits, device=place.device, kv_dtype=kv_dtype, launch=place.launch)
    attention.plan(case.layout)
    out = attention.run_joined(torch.cat((case.q, case.k, case.v), dim=1), HeadChanges(), spec, case.cache)
    stored = case.stored()
    place.assert_close(case.cache.keys[case.layout.slots].float() * 0.5, stored.keys[case.layout.slots], 1e-6)
    place.assert_close(case.cache.values[case.layout.slots].float() * 2.0, stored.values[case.layout.slots], 1e-6)
    place.assert_close(out, attend(case.q, case.layout, spec, stored), tolerance(torch.float16))
