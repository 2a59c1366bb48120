"""Products of few rows against torch's, with what is fused around them."""

import pytest
import torch
import torch.nn.functional as F  # noqa: N812

from corymb.kernels.operations import Norm
from corymb.kernels.torch_operations import TorchOperations
from corymb.kernels.triton_linear import multiply
from corymb.kernels.triton_products import Size, choose_shape, fits, fuses_gate, fuses_norm, wins
from corymb.models.cuda_linear import CudaLinears

PLAIN = TorchOperations()
SHAPES = [(1, 48, 64), (3, 40, 96), (17, 16, 32), (2, 24, 8), (5, 40, 200)]
REAL = [(1, 6144, 4096), (8, 4096, 14336), (33, 4096, 4096), (64, 49152, 576)]
SHAPES += [pytest.param(shape, marks=pytest.mark.gpu) for shape in REAL]
DTYPES = [torch.float32, torch.bfloat16]


def inputs(place, shape, dtype):
    num_rows, num_outputs, num_inputs = shape
    x = place.normal(num_rows, num_inputs, dtype=dtype)
    return x, place.normal(num_outputs, num_inputs, dtype=dtype, scale=num_inputs**-0.5)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_product_with_bias(place, tolerance, shape, dtype) -> None:
    x, weight = inputs(place, shape, dtype)
    bias = place.normal(shape[1], dtype=dtype)
    out = multiply(x, weight, launch=place.launch, bias=bias)
    place.assert_close(out, F.linear(x.double(), weight.double(), bias.double()), tolerance(dtype))


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_norm_first_and_addition_after(place, tolerance, shape) -> None:
    x, weight = inputs(place, shape, torch.bfloat16)
    norm = Norm(place.normal(shape[2]), 1e-5)
    residual = place.normal(shape[0], shape[1], dtype=torch.bfloat16)
    expected = residual.double() + F.linear(PLAIN.rms_norm(x.float(), norm.weight, 1e-5).double(), weight.double())
    out = multiply(x, weight, launch=place.launch, norm=norm, add_to=residual)
    assert out is residual
    place.assert_close(out, expected, tolerance(torch.bfloat16))


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("gate", ["silu", "gelu_tanh"])
def test_gate_after(place, tolerance, shape, gate) -> None:
    x, weight = inputs(place, shape, torch.bfloat16)
    norm = Norm(place.normal(shape[2]), 1e-5)
    both = F.linear(PLAIN.rms_norm(x.float(), norm.weight, 1e-5), weight.float())
    expected = {"silu": PLAIN.silu_mul, "gelu_tanh": PLAIN.gelu_tanh_mul}[gate](both.clone())
    out = multiply(x, weight, launch=place.launch, norm=norm, gate=gate)
    place.assert_close(out, expected, 2 * tolerance(torch.bfloat16))  # rounded three times


@pytest.mark.parametrize("shape", [(70, 40, 96), pytest.param((300, 6144, 4096), marks=pytest.mark.gpu)], ids=str)
def test_a_row_keeps_its_bits_in_any_company(place, shape) -> None:
    x, weight = inputs(place, shape, torch.bfloat16)
    together = multiply(x, weight, launch=place.launch, invariant=True)
    for rows in (slice(0, 1), slice(5, 13), slice(shape[0] - 1, shape[0])):
        assert torch.equal(multiply(x[rows], weight, launch=place.launch, invariant=True), together[rows])


def test_what_does_not_fit_is_told(place) -> None:
    weight = place.normal(8, 40)
    assert not fits(weight, 1)  # 40 inputs are no multiple of a block
    assert not fits(place.normal(8, 64), 129)
    assert fits(place.normal(8, 64), 128)


def test_ours_are_the_products_that_were_faster_than_the_librarys() -> None:
    qkv, output, inner, down, head = (6144, 4096), (4096, 4096), (28672, 4096), (4096, 14336), (128256, 4096)
    assert [wins(Size(1, *product)) for product in (qkv, output, inner, down, head)] == [
        True,
        True,
        False,
        False,
        False,
    ]
    assert [wins(Size(rows, *output)) for rows in (16, 17, 32, 33, 64, 65)] == [
        True,
        False,
        False,
        True,
        True,
        False,
    ]
    for rows in (32, 33):
        assert all(wins(Size(rows, *small)) == (rows == 32) for small in ((960, 576), (576, 1536), (3072, 576)))
    assert [fuses_norm(Size(1, *product)) for product in (qkv, (960, 576))] == [False, True]
    assert [fuses_gate(Size(64, *product)) for product in (inner, (3072, 576), (28672, 8192))] == [True, False, False]
    assert [fuses_gate(Size(rows, 24576, 4096)) for rows in (1, 16, 17, 64, 128)] == [True, True, False, False, False]


@pytest.mark.parametrize("num_inputs", [48, 576, 1536, 4096, 14336])
@pytest.mark.parametrize("num_outputs", [576, 4096, 6144, 12288, 28672])
def test_blocks_divide_the_inputs_and_fit_a_multiprocessor(num_outputs, num_inputs) -> None:
    for num_rows in (16, 32, 64, 128):
        for weights in (1, 2):  # a gated product reads two blocks
            shape = choose_shape(Size(num_rows, num_outputs, num_inputs), gated=weights == 2)
            assert num_inputs % shape.block_k == 0
            assert 2 * (num_rows + weights * shape.block_n) * shape.block_k * shape.num_stages <= 227 << 10


def test_the_librarys_product_adds_where_it_is_asked_to(place, tolerance) -> None:
    x, weight = inputs(place, (20, 48, 64), torch.float32)
    residual = place.normal(20, 48)
    expected = residual.double() + F.linear(x.double(), weight.double())
    adding, plain = (
        CudaLinears(torch.float32, place.launch, fused_rows=4, library_adds=adds)(weight, None)
        for adds in (True, False)
    )
    assert [product.fuses(20, "addition") for product in (adding, plain)] == [True, False]
    assert not adding.fuses(20, "norm")
    assert not adding.fuses(5000, "addition")
    assert adding.fused(x, add_to=residual) is residual
    place.assert_close(residual, expected, tolerance(torch.float32))
