"""Slots of many tensors are carried as one, bit for bit."""

import pytest
import torch

from corymb.kernels.triton_carrying import TritonCarrier


@pytest.mark.parametrize("dtype", [torch.int64, torch.uint8])
@pytest.mark.parametrize("widths", [(3, 8, 1), (1300, 5)])
def test_what_is_gathered_and_put_elsewhere_is_the_same(place, dtype, widths):
    def random(width):
        return torch.randint(0, 200, (23, width), generator=place.generator).to(place.device, dtype)

    tensors = [random(width) for width in widths]
    before = [tensor.clone() for tensor in tensors]
    carrier = TritonCarrier(tensors, place.launch)
    source, target = (torch.from_numpy(place.numbers.permutation(23)[:11]).to(place.device) for _ in range(2))
    packed = carrier.gather(source)
    assert torch.equal(packed, torch.cat([tensor[source] for tensor in before], 1))
    carrier.put(packed, target)
    for tensor, old in zip(tensors, before, strict=True):
        expected = old.clone()
        expected[target] = old[source]
        assert torch.equal(tensor, expected), "the slots that are named, and no other"
