"""Rotary position embeddings as a table of cosines and sines."""

import math

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from corymb.models.rope_config import LinearScaling, Llama3Scaling, Rope, YarnScaling


def turn_table(rope: Rope, head_dim: int, context_length: int, device: torch.device) -> Tensor:
    """Returns float32 [context_length, head_dim]: the cosines of each position's angles, then the sines. Angles are
    zero for dimensions that do not turn, which come last in each half: see head_order."""
    # Computed in float32 as checkpoints were trained with, not better.
    num_rotated = rope.num_rotated(head_dim)
    frequencies, factor = _frequencies(rope, num_rotated)
    angles = torch.arange(context_length, dtype=torch.float32)[:, None] * frequencies
    kept = (head_dim - num_rotated) // 2
    cosines, sines = F.pad(angles.cos().mul_(factor), (0, kept), value=1.0), F.pad(angles.sin().mul_(factor), (0, kept))
    return torch.cat((cosines, sines), dim=-1).to(device)


def _frequencies(rope: Rope, head_dim: int) -> tuple[Tensor, float]:
    periods = rope.theta ** (torch.arange(0, head_dim, 2, dtype=torch.float32) / head_dim)
    match rope.scaling:
        case None:
            return 1.0 / periods, 1.0
        case LinearScaling(factor):
            return 1.0 / periods / factor, 1.0
        case Llama3Scaling():
            return _llama3(1.0 / periods, rope.scaling), 1.0
        case YarnScaling():
            return _yarn(periods, rope.theta, rope.scaling), _yarn_factor(rope.scaling)


def _llama3(frequencies: Tensor, scaling: Llama3Scaling) -> Tensor:
    low, high = scaling.low_frequency_factor, scaling.high_frequency_factor
    wavelengths = 2 * math.pi / frequencies
    smooth = (scaling.original_context / wavelengths - low) / (high - low)
    blended = (1 - smooth) * frequencies / scaling.factor + smooth * frequencies
    scaled = torch.where(wavelengths > scaling.original_context / low, frequencies / scaling.factor, blended)
    return torch.where(wavelengths < scaling.original_context / high, frequencies, scaled)


def _yarn(periods: Tensor, theta: float, scaling: YarnScaling) -> Tensor:
    num, dim = len(periods), 2 * len(periods)

    def dimension(rotations: float) -> float:
        """The dimension that turns so often within the original context."""
        return dim * math.log(scaling.original_context / (rotations * 2 * math.pi)) / (2 * math.log(theta))

    low, high = dimension(scaling.beta_fast), dimension(scaling.beta_slow)
    if scaling.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, dim - 1)
    ramp = ((torch.arange(num, dtype=torch.float32) - low) / max(high - low, 0.001)).clamp(0, 1)
    return ramp / (scaling.factor * periods) + (1 - ramp) / periods


def _yarn_factor(scaling: YarnScaling) -> float:
    if scaling.attention_factor is not None:
        return scaling.attention_factor
    if scaling.mscale and scaling.mscale_all_dim:
        return _mscale(scaling.factor, scaling.mscale) / _mscale(scaling.factor, scaling.mscale_all_dim)
    return _mscale(scaling.factor, 1.0)


def _mscale(factor: float, mscale: float) -> float:
    return 0.1 * mscale * math.log(factor) + 1.0 if factor > 1 else 1.0
