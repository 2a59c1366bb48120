"""The fused loss of a draft against the plain one."""

import pytest
import torch

from corymb.kernels.distillation import distil
from corymb.kernels.triton_distillation import TritonDistillation

SHAPES = [(3, 48), (2, 200), pytest.param((257, 49_152), marks=pytest.mark.gpu)]


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_distances_and_gradient(place, tolerance, shape, dtype) -> None:
    draft, target = (place.normal(*shape, dtype=dtype, scale=3.0) for _ in range(2))
    target[0] = draft[0]  # equal rows: no distance, and no direction to go
    rows = {
        "labels": torch.arange(shape[0], device=place.device) * 7 % shape[1],
        "temperature": torch.full((shape[0],), 0.5, device=place.device),
        "weights": place.normal(shape[0], 2).abs(),
    }
    rows["temperature"][-1] = 1.3
    expected = draft.clone()
    plain = distil(expected, target.clone(), **rows)
    fused = TritonDistillation(place.launch)(draft, target, **rows)
    place.assert_close(fused.cross_entropy, plain.cross_entropy, 1e-5)
    place.assert_close(fused.l1, plain.l1, 1e-5)
    place.assert_close(draft, expected, tolerance(dtype))


def test_logits_far_apart_stay_finite(place) -> None:
    draft = torch.tensor([[-1e4, 1e4, 0.0, 5.0]], device=place.device)
    target = torch.tensor([[1e4, -1e4, 0.0, 5.0]], device=place.device)
    ones = torch.ones(1, device=place.device)
    labels = torch.zeros(1, dtype=torch.int64, device=place.device)
    weights = torch.ones(1, 2, device=place.device)
    found = TritonDistillation(place.launch)(draft, target, labels=labels, temperature=ones, weights=weights)
    place.assert_close(found.cross_entropy, torch.tensor([2e4], device=place.device))
    place.assert_close(found.l1, torch.tensor([2.0], device=place.device))
    place.assert_close(draft, torch.tensor([[-1.0, 1.0, 0.0, 0.0]], device=place.device))
