"""The likeliest drafts are those of plain torch, equals included."""

import numpy as np
import pytest
import torch

from corymb.kernels.allotting import allot
from corymb.kernels.triton_allotting import TritonAllotting

LEAST = 1e-6


def check(place, num_rows, num_drafts, budgets, *, steps=(1.0, 1.0, 0.5, 0.25, LEAST)) -> None:
    numbers = place.numbers
    conditional = numbers.choice(np.array(steps, np.float32), (num_rows, num_drafts))
    survivals = place.put(np.cumprod(conditional, axis=1, dtype=np.float32))
    most = place.put(numbers.integers(0, num_drafts + 1, num_rows).astype(np.int32))
    back_end = TritonAllotting(place.launch, max_rows=num_rows + 2)
    for budget in budgets:
        found = back_end(survivals, most, budget, least=LEAST)
        assert torch.equal(found, allot(survivals, most, budget, least=LEAST)), budget


@pytest.mark.parametrize(("num_rows", "num_drafts"), [(5, 3), (1, 4), (3, 1)])
def test_windows_are_those_of_plain_torch(place, num_rows, num_drafts) -> None:
    check(place, num_rows, num_drafts, (1, num_rows, 2 * num_rows + 1, num_rows * num_drafts + 1))


@pytest.mark.gpu
def test_windows_of_many_rows(place) -> None:
    check(place, 256, 7, range(1, 1800, 97))
    check(place, 200, 31, (10, 1000, 5000), steps=tuple(np.linspace(0.5, 1, 50)))
