"""Reads tensors that are packed as MXFP4 as what they stand for."""

import torch
from torch import Tensor

from corymb.models.packed import BLOCK_NUMBERS, BLOCKS, SCALES
from corymb.models.weights import Weights

# What four bits stand for: a sign, two bits of exponent, one of fraction.
NUMBERS = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
EXPONENT_BIAS = 127


class Mxfp4Weights:
    """Gives packed tensors in bfloat16, which holds each of their numbers exactly, and all others as they are."""

    def __init__(self, weights: Weights, packed: frozenset[str]) -> None:
        self._weights = weights
        self._packed = packed

    def take(self, name: str) -> Tensor:
        """See Weights."""
        if name not in self._packed:
            return self._weights.take(name)
        blocks, scales = self._weights.take(name + BLOCKS), self._weights.take(name + SCALES)
        experts, outputs, groups = scales.shape
        whole = torch.empty((experts, outputs, groups * BLOCK_NUMBERS), dtype=torch.bfloat16, device=blocks.device)
        for expert in range(experts):  # one at a time: the steps between take many times a block's memory
            whole[expert] = dequantize(blocks[expert], scales[expert])
        return whole.transpose(1, 2)


def dequantize(blocks: Tensor, scales: Tensor) -> Tensor:
    """Returns bfloat16 [outputs, groups × 32] of blocks uint8 [outputs, groups, 16], the lower four bits first, and
    scales uint8 [outputs, groups]."""
    table = torch.tensor([*NUMBERS, *(-number for number in NUMBERS)], device=blocks.device)
    numbers = table[torch.stack((blocks & 15, blocks >> 4), dim=-1).int()].flatten(-2)
    return torch.ldexp(numbers, scales.int().unsqueeze(-1) - EXPONENT_BIAS).flatten(1).to(torch.bfloat16)
