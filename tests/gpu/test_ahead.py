"""Which weight comes next, and what small kernels ask for of it."""

import pytest
import torch
from ahead_kernel import mark_share

from corymb.kernels.torch_operations import TorchOperations
from corymb.kernels.triton_ahead import MOST_ROWS, Ahead
from corymb.kernels.triton_linear import multiply
from corymb.kernels.triton_operations import TritonOperations


@pytest.mark.parametrize(("num_rows", "lines"), [(5, 3), (70, 1), (64, 4)])
def test_every_row_is_asked_for_from_its_beginning(place, num_rows, lines) -> None:
    weight = torch.zeros(num_rows, 5 * 32, dtype=torch.int32, device=place.device)
    mark_share[(3,)](weight, num_rows, weight.stride(0), lines, PROGRAMS=3, ITEMS=32)
    expected = torch.zeros_like(weight)
    expected[:, : 32 * lines : 32] = 1
    assert torch.equal(weight, expected)


def test_the_order_of_products_is_learnt() -> None:
    weights = [torch.zeros(64, 512 * (1 + index), dtype=torch.bfloat16) for index in range(3)]
    ahead, x = Ahead(64 * 1024, num_programs=7), torch.zeros(2, 8)
    assert ahead.arguments(x)["AHEAD"] == 0
    for _ in range(2):
        for index, weight in enumerate(weights):
            ahead.passed(weight, 1, asks=index == 1)
    ahead.passed(weights[0], 1)
    assert ahead.arguments(x[:1])["AHEAD"] == 0  # the next one asks for itself
    assert ahead.arguments(x)["AHEAD"] == 0  # nothing is known of two rows
    for weight in [*weights, *weights]:
        ahead.passed(weight, 2)
    for index, weight in enumerate(weights):
        ahead.passed(weight, 2)
        coming = weights[(index + 1) % 3]
        assert ahead.arguments(x)["ahead"] is coming
        assert ahead.arguments(x, 9) == ahead.arguments(x) | {"AHEAD": 9}
    assert ahead.arguments(x)["ahead_lines"] == 8  # 1,024 bytes, all of a row
    assert ahead.arguments(torch.zeros(MOST_ROWS + 1, 1))["AHEAD"] == 0


@pytest.mark.gpu
@pytest.mark.parametrize("num_rows", [1, 33])
def test_asking_changes_no_result(place, num_rows) -> None:
    weight = place.normal(4096, 1024, dtype=torch.bfloat16)
    ahead = Ahead(4 << 20, num_programs=place.launch.num_sms)
    ahead.passed(weight, num_rows)
    ahead.passed(weight, num_rows)
    operations, plain = TritonOperations(place.launch, ahead), TorchOperations()
    x, residual = (place.normal(num_rows, 1024, dtype=torch.bfloat16) for _ in range(2))
    scale = place.normal(1024)
    expected = plain.add_rms_norm(x, residual.clone(), scale, 1e-5)
    place.assert_close(operations.add_rms_norm(x, residual, scale, 1e-5), expected, 8e-3)
    place.assert_close(operations.silu_mul(x), plain.silu_mul(x.clone()), 8e-3)
    gated = [multiply(x, weight, launch=place.launch, gate="silu", ahead=one) for one in (None, ahead)]
    assert torch.equal(*gated)
