"""Triton attention against its definition, one query at a time."""

from dataclasses import replace

import pytest
import torch

from corymb.kernels.attention import AttentionSpec
from corymb.kernels.reference_attention import attend
from corymb.kernels.triton_attention import Limits, TritonAttention

LLAMA = AttentionSpec(num_heads=32, num_kv_heads=8, head_dim=128, scale=128**-0.5)
SMOLLM = AttentionSpec(num_heads=9, num_kv_heads=3, head_dim=64, scale=0.125)
GEMMA = AttentionSpec(num_heads=4, num_kv_heads=1, head_dim=256, scale=0.0625, window=512, soft_cap=50.0)
TINY = AttentionSpec(num_heads=4, num_kv_heads=2, head_dim=16, scale=0.25)

# widths, starts
TINY_STEPS = {
    "decode": ([1, 1, 1], [200, 0, 9]),
    "chunk": ([37], [100]),
    "mixture": ([1, 20, 1, 3], [150, 11, 0, 130]),
}
REAL_STEPS = {
    "decode": ([1] * 64, list(range(3, 64 * 31, 31))),
    "long decode": ([1, 1], [8191, 40]),
    "verify": ([1, 2, 3, 4, 5, 6] * 4, list(range(24, 24 * 61, 60))),
    "chunk": ([700], [1333]),
    "mixture": ([1, 513, 1, 77, 1], [1500, 0, 31, 900, 2047]),
}


def check(place, case, tolerance, *, deterministic=False):
    attention = make(place, case, deterministic=deterministic)
    for _ in range(2):  # the second run meets what the first left in the workspace
        attention.plan(case.layout)
        out = attention.run(case.q, case.k, case.v, case.spec, case.cache)
    expected = attend(case.q, case.layout, case.spec, case.stored())
    place.assert_close(out, expected, tolerance)
    slots = case.layout.slots if case.spec.window is None else case.layout.sliding_slots
    stored = case.stored()
    place.assert_close(case.cache.keys[slots].float() * case.cache.key_scale, stored.keys[slots], 1e-6)
    place.assert_close(case.cache.values[slots].float() * case.cache.value_scale, stored.values[slots], 1e-6)


def make(place, case, *, deterministic=False, max_rows=64):
    return TritonAttention(
        [case.spec],
        Limits(max_rows=max(max_rows, case.layout.num_rows), max_tokens=max(max_rows, case.layout.num_tokens)),
        device=place.device,
        kv_dtype=case.cache.keys.dtype,
        launch=place.launch,
        deterministic=deterministic,
    )


@pytest.mark.parametrize("step", TINY_STEPS)
@pytest.mark.parametrize("deterministic", [False, True])
def test_ragged_step(place, make_case, tolerance, step, deterministic) -> None:
    case = make_case(TINY, *TINY_STEPS[step])
    check(place, case, tolerance(torch.float32), deterministic=deterministic)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_16_bit_types(place, make_case, tolerance, dtype) -> None:
    check(place, make_case(TINY, *TINY_STEPS["mixture"], dtype=dtype), tolerance(dtype))


@pytest.mark.parametrize("step", ["decode", "mixture"])
def test_window_reads_the_sliding_pool(place, make_case, tolerance, step) -> None:
    spec = AttentionSpec(num_heads=3, num_kv_heads=1, head_dim=32, scale=0.2, window=48)
    check(place, make_case(spec, *TINY_STEPS[step]), tolerance(torch.float32))


def test_soft_cap_and_a_head_size_that_is_no_power_of_two(place, make_case, tolerance) -> None:
    spec = AttentionSpec(num_heads=6, num_kv_heads=2, head_dim=24, scale=0.9, soft_cap=3.0)
    check(place, make_case(spec, *TINY_STEPS["mixture"]), tolerance(torch.float32))


@pytest.mark.parametrize("window", [None, 48], ids=["full", "sliding"])
@pytest.mark.parametrize("deterministic", [False, True])
def test_sinks_take_their_share_once(place, make_case, tolerance, window, deterministic) -> None:
    spec = AttentionSpec(num_heads=6, num_kv_heads=2, head_dim=16, scale=0.25, window=window)
    spec = replace(spec, sinks=place.normal(6, scale=3.0))
    check(place, make_case(spec, *TINY_STEPS["mixture"]), tolerance(torch.float32), deterministic=deterministic)


def test_more_query_heads_than_a_narrow_tile_has_rows(place, make_case, tolerance) -> None:
    spec = AttentionSpec(num_heads=20, num_kv_heads=1, head_dim=16, scale=0.25)
    check(place, make_case(spec, *TINY_STEPS["decode"]), tolerance(torch.float32))


@pytest.mark.parametrize("kv_dtype", [torch.float8_e4m3fn, torch.float8_e5m2])
def test_8_bit_pool_with_scales(place, make_case, tolerance, kv_dtype) -> None:
    case = make_case(TINY, *TINY_STEPS["mixture"], dtype=torch.float16, kv_dtype=kv_dtype, scales=(0.5, 2.0))
    check(place, case, tolerance(torch.float16))


def test_8_bit_pool_keeps_large_values_finite(place, make_case) -> None:
    case = make_case(TINY, [2], [3], dtype=torch.bfloat16, kv_dtype=torch.float8_e4m3fn)
    attention = make(place, case)
    attention.plan(case.layout)
    attention.run(case.q, case.k * 1e4, case.v * 1e4, case.spec, case.cache)
    assert case.cache.values[case.layout.slots].float().abs().max() == 448.0


def test_padding_rows_change_nothing(place, make_case, pad, tolerance) -> None:
    case = make_case(TINY, *TINY_STEPS["mixture"])
    for pool in (case.cache.keys, case.cache.values):
        pool[0] = 0.0  # the padding slot
    layout = pad(case.layout, 9, place)
    extra = layout.num_rows - case.layout.num_rows + layout.rows.shape[0] - case.layout.rows.shape[0]

    def padded(tensor):
        return torch.cat((tensor, place.normal(extra, *tensor.shape[1:], dtype=tensor.dtype)))

    attention = make(place, case)
    attention.plan(layout)
    out = attention.run(padded(case.q), padded(case.k), padded(case.v), case.spec, case.cache)
    place.assert_close(out[: len(case.q)], attend(case.q, case.layout, case.spec, case.stored()), 2e-6)
    assert out.isfinite().all()


def test_rows_of_no_width_are_passed_over(place, make_case, tolerance) -> None:
    case = make_case(TINY, [1, 5], [70, 20])
    layout = case.layout
    empty = torch.zeros(3, dtype=torch.int32, device=place.device)
    attention = make(place, case)
    attention.plan(
        replace(
            layout,
            rows=torch.cat((layout.rows, empty)),
            widths=torch.cat((layout.widths, empty)),
            starts=torch.cat((layout.starts, empty)),
            offsets=torch.cat((layout.offsets, empty + layout.num_tokens)),
        )
    )
    out = attention.run(case.q, case.k, case.v, case.spec, case.cache)
    place.assert_close(out, attend(case.q, layout, case.spec, case.stored()), tolerance(torch.float32))


def test_deterministic_output_does_not_depend_on_the_batch(place, make_case) -> None:
    case = make_case(TINY, [1, 20, 1, 3], [150, 11, 0, 130])
    attention = make(place, case, deterministic=True)
    attention.plan(case.layout)
    together = attention.run(case.q, case.k, case.v, case.spec, case.cache)
    for index, (width, offset) in enumerate(zip(case.layout.host_widths, case.layout.offsets.tolist(), strict=False)):
        one = slice(index, index + 1)
        tokens = slice(offset, offset + int(width))
        attention.plan(part(case.layout, one, tokens))
        alone = attention.run(case.q[tokens], case.k[tokens], case.v[tokens], case.spec, case.cache)
        assert torch.equal(alone, together[tokens])


def test_too_large_a_step_is_refused(place, make_case) -> None:
    case = make_case(TINY, [1] * 3, [5] * 3)
    attention = TritonAttention([TINY], Limits(2, 2), device=place.device, kv_dtype=torch.float32, launch=place.launch)
    with pytest.raises(ValueError, match="larger than this back end was made for"):
        attention.plan(case.layout)


def part(layout, rows, tokens):
    """Some rows of a layout as a step of their own."""
    return replace(
        layout,
        rows=layout.rows[rows],
        widths=layout.widths[rows],
        starts=layout.starts[rows],
        offsets=torch.tensor([0, tokens.stop - tokens.start], dtype=torch.int32, device=layout.rows.device),
        positions=layout.positions[tokens],
        slots=layout.slots[tokens],
        host_rows=layout.host_rows[rows],
        host_widths=layout.host_widths[rows],
        host_starts=layout.host_starts[rows],
    )


@pytest.mark.gpu
@pytest.mark.parametrize("step", REAL_STEPS)
@pytest.mark.parametrize("spec", [LLAMA, SMOLLM, GEMMA], ids=["llama", "smollm", "gemma"])
@pytest.mark.parametrize("deterministic", [False, True])
def test_real_shapes(place, make_case, tolerance, spec, step, deterministic) -> None:
    case = make_case(spec, *REAL_STEPS[step], dtype=torch.bfloat16)
    check(place, case, tolerance(torch.bfloat16), deterministic=deterministic)


@pytest.mark.gpu
@pytest.mark.parametrize("step", REAL_STEPS)
@pytest.mark.parametrize("spec", [LLAMA, SMOLLM, GEMMA], ids=["llama", "smollm", "gemma"])
def test_what_starts_early_sees_all_that_came_before(place, make_case, tolerance, spec, step) -> None:
    if torch.cuda.get_device_capability() < (9, 0):
        pytest.skip("kernels start early from Hopper on")
    case = make_case(spec, *REAL_STEPS[step], dtype=torch.bfloat16)
    check(replace(place, launch=replace(place.launch, early=True)), case, tolerance(torch.bfloat16))


@pytest.mark.gpu
@pytest.mark.parametrize("kv_dtype", [torch.float8_e4m3fn, torch.float8_e5m2])
@pytest.mark.parametrize("step", ["decode", "chunk"])
def test_real_shapes_with_an_8_bit_pool(place, make_case, tolerance, step, kv_dtype) -> None:
    case = make_case(LLAMA, *REAL_STEPS[step], dtype=torch.bfloat16, kv_dtype=kv_dtype, scales=(0.7, 1.3))
    check(place, case, tolerance(torch.bfloat16))


@pytest.mark.gpu
def test_fp32_is_exact_on_the_gpu_too(place, make_case, tolerance) -> None:
    check(place, make_case(SMOLLM, *REAL_STEPS["mixture"]), tolerance(torch.float32))
