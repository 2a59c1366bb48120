"""How many threads a step gets."""

import time

import pytest
import torch

from corymb.models.cpu_linear import HalfLinear, Int8Linear, PackedLinear
from corymb.models.threads import NARROW_TOKENS, Threads


@pytest.fixture(autouse=True)
def _as_before():
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def test_steps_get_one_thread_up_to_where_that_is_faster() -> None:
    threads = Threads(2)
    threads.measure(lambda width: time.sleep(0.002 * width if torch.get_num_threads() == 1 else 0.006))
    asked = {}
    for width in (1, 2, 3, 4, 8, 100):
        threads.prepare(width)
        asked[width] = torch.get_num_threads()
    assert asked == {1: 1, 2: 1, 3: 2, 4: 2, 8: 2, 100: 2}


def test_where_more_threads_always_help_every_step_gets_them() -> None:
    threads = Threads(2)
    threads.measure(lambda _: time.sleep(0.004 / torch.get_num_threads()))
    threads.prepare(1)
    assert torch.get_num_threads() == 2


def test_one_thread_is_not_measured() -> None:
    def run(width: int) -> None:
        raise AssertionError(width)

    Threads(1).measure(run)


@pytest.mark.parametrize("linear", [HalfLinear, PackedLinear, Int8Linear])
def test_no_bit_of_a_product_depends_on_the_threads(linear) -> None:
    generator = torch.Generator().manual_seed(3)
    for outputs, inputs in ((960, 576), (576, 1536), (4096, 576)):
        product = linear(torch.randn(outputs, inputs, generator=generator) * 0.05, None)
        for rows in (*NARROW_TOKENS, 33):
            x = torch.randn(rows, inputs, generator=generator)
            torch.set_num_threads(1)
            alone = product(x)
            torch.set_num_threads(2)
            assert torch.equal(product(x), alone)
