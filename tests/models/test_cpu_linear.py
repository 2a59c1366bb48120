"""Products on a CPU: right, and the same bits for a row whatever rows are beside it."""

import pytest
import torch

from corymb.models.cpu_linear import HalfLinear, Int8Linear, PackedLinear, input_levels, num_alike
from corymb.models.errors import UnsupportedModel
from corymb.models.linear import PlainLinear, linear_for

FORMATS = {"float32": PackedLinear, "float16": HalfLinear, "int8": Int8Linear}
TOLERANCE = {"float32": 2e-6, "float16": 5e-4, "int8": 0.015}  # of the largest output
SHAPES = [(960, 576), (576, 1536), (129, 48), (4096, 64)]


def make(shape: tuple[int, int], num_rows: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """A weight, a bias and inputs whose rows differ a thousandfold in size."""
    generator = torch.Generator().manual_seed(shape[0])
    weight = torch.randn(shape, generator=generator) * 0.05
    bias = torch.randn(shape[0], generator=generator)
    sizes = 10 ** torch.linspace(-1.5, 1.5, num_rows)
    return weight, bias, torch.randn(num_rows, shape[1], generator=generator) * sizes[:, None]


@pytest.mark.parametrize("with_bias", [False, True])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("name", FORMATS)
def test_product_is_right_in_every_row(name: str, shape: tuple[int, int], with_bias: bool) -> None:
    weight, bias, x = make(shape, 20)
    out = FORMATS[name](weight, bias if with_bias else None)(x)
    expected = x.double() @ weight.double().T + (bias.double() if with_bias else 0)
    for row, wanted in zip(out, expected, strict=True):
        assert (row - wanted).abs().max() < TOLERANCE[name] * wanted.abs().max()


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("name", FORMATS)
def test_row_gives_the_same_bits_beside_any_others(name: str, shape: tuple[int, int]) -> None:
    weight, bias, x = make(shape, 130)
    linear = FORMATS[name](weight, bias)
    together = linear(x)
    for num_rows in (1, 2, 3, 7, 8, 16, 31, 32, 33, 64, 128):
        for first in (0, 2):
            some = x[first : first + num_rows].contiguous()
            assert torch.equal(linear(some), together[first : first + num_rows]), num_rows


def test_half_products_are_padded_to_a_number_of_rows_that_is_summed_alike() -> None:
    for num_rows in range(1, 130):
        assert num_rows <= num_alike(num_rows) <= num_rows + 2
        assert num_alike(num_alike(num_rows)) == num_alike(num_rows)


def test_int8_is_exact_where_nothing_is_rounded() -> None:
    """The largest inputs times the largest weights: where 16-bit sums would overflow."""
    weight = torch.ones(64, 576)
    x = torch.ones(3, 576)
    assert torch.allclose(Int8Linear(weight, None)(x), torch.full((3, 64), 576.0), rtol=1e-5)
    assert input_levels() in (63, 127)


def test_int8_takes_rows_and_weights_of_zeros() -> None:
    weight, _, x = make((64, 48), 3)
    weight[5] = 0
    x[1] = 0
    out = Int8Linear(weight, None)(x)
    assert out.isfinite().all()
    assert (out[1] == 0).all()
    assert (out[:, 5] == 0).all()


@pytest.mark.parametrize("size", [1e5, torch.inf, torch.nan])
def test_weights_beyond_float16_are_refused(size: float) -> None:
    weight = torch.ones(8, 8)
    weight[3, 3] = size
    with pytest.raises(UnsupportedModel, match="serve it with --dtype float32"):
        HalfLinear(weight, None)


def test_weights_of_any_type_can_be_packed() -> None:
    weight, bias, x = make((96, 48), 4)
    for name, linear in FORMATS.items():
        out = linear(weight.bfloat16(), bias.bfloat16())(x)
        expected = x @ weight.bfloat16().float().T + bias.bfloat16().float()
        assert (out - expected).abs().max() < TOLERANCE[name] * expected.abs().max()


def test_sixteen_bit_computing_stays_plain() -> None:
    weight, bias, x = make((96, 48), 4)
    linear = linear_for(torch.device("cpu"), torch.bfloat16, "bfloat16")(weight, bias)
    assert isinstance(linear, PlainLinear)
    assert linear(x.bfloat16()).dtype == torch.bfloat16


@pytest.mark.parametrize("levels", sorted({63, input_levels()}))  # more than this CPU takes would overflow
def test_int8_rounds_weights_alone(monkeypatch: pytest.MonkeyPatch, levels: int) -> None:
    """Inputs keep 14 bits at least, beside an input a hundred times as large too."""
    monkeypatch.setattr("corymb.models.cpu_linear.input_levels", lambda: levels)
    weight, _, x = make((96, 64), 20)
    weight = (weight / weight.abs().amax(dim=1, keepdim=True) * 127).round()
    x[:, 7] *= 100
    out = Int8Linear(weight, None)(x)
    expected = x.double() @ weight.double().T
    largest = x.double().abs().amax(dim=1, keepdim=True) * weight.double().abs().sum(dim=1)
    assert ((out - expected).abs() / largest).max() < 1 / 2**14


def test_machines_without_half_products_round_weights_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    weight, bias, x = make((96, 48), 4)
    fast = linear_for(torch.device("cpu"), torch.float32, "float16")(weight, bias)(x)
    monkeypatch.setattr("corymb.models.linear.has_half_products", lambda: False)
    slow = linear_for(torch.device("cpu"), torch.float32, "float16")(weight, bias)(x)
    assert torch.allclose(fast, slow, rtol=1e-5, atol=1e-5)
    with pytest.raises(UnsupportedModel, match="needs an x86 CPU"):
        linear_for(torch.device("cpu"), torch.float32, "int8")
    monkeypatch.setattr("corymb.models.linear.has_packed_products", lambda: False)
    plain = linear_for(torch.device("cpu"), torch.float32, "float16")(weight, bias)
    assert isinstance(plain, PlainLinear)
    assert torch.allclose(fast, plain(x), rtol=1e-5, atol=1e-5)
