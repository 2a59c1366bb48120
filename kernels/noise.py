"""Noise that a counter makes: the same for the same (seed, index, token id), whatever else runs in the batch.

Seed and index become a key of 64 bits on the host; key and token id become 31 bits of noise on the device.
"""

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_OTHER = np.uint64(0xD1B54A32D192ED03)
_MIX_FIRST = np.uint64(0xBF58476D1CE4E5B9)
_MIX_SECOND = np.uint64(0x94D049BB133111EB)
_STRIDE = 0x9E3779B1 - (1 << 32)  # as int32; odd, so distinct ids stay distinct
_FIRST = 0x7FEB352D
_SECOND = 0x846CA68B - (1 << 32)
_LARGEST = 1.0 - 2.0**-24  # the largest float32 below one: log1p(-1) would be infinite


def row_keys(seeds: NDArray[np.uint64], indices: NDArray[np.int32]) -> NDArray[np.int32]:
    """Returns keys [N, 2] for the output tokens `indices` [N] of requests with `seeds` [N]."""
    mixed = _mix64(_mix64(seeds + _GOLDEN) + (indices.astype(np.uint64) + np.uint64(1)) * _GOLDEN)
    return mixed.view(np.int32).reshape(-1, 2)


def other_keys(seeds: NDArray[np.uint64], indices: NDArray[np.int32]) -> NDArray[np.int32]:
    """Like `row_keys`, and independent of them."""
    return row_keys(seeds ^ _OTHER, indices)


def seeds_of_step(seeds: NDArray[np.uint64], step: int) -> NDArray[np.uint64]:
    """Seeds [N] of noise that these requests have in one step only."""
    return _mix64(seeds + np.uint64((step + 1) * int(_OTHER) & 0xFFFFFFFFFFFFFFFF))


def keys_of(seeds: Tensor, indices: Tensor, *, other: bool = False) -> Tensor:
    """`row_keys`, or if `other` `other_keys`, where the device alone knows the indices: int32 [N, 2] for the bits of
    seeds and indices, int64 [N] each."""
    seeds = seeds ^ _signed(_OTHER) if other else seeds
    golden = _signed(_GOLDEN)
    mixed = _mix_bits(_mix_bits(seeds + golden) + (indices + 1) * golden)
    return mixed.view(torch.int32).view(-1, 2)


def exponential(keys: Tensor, token_ids: Tensor) -> Tensor:
    """Returns standard exponential variates E > 0, float32 [N, K], for keys [N, 2] and int32 ids [K] or [N, K].

    argmax(p / E) is then a sample of the distribution p: an exponential race.
    """
    bits = token_ids * _STRIDE + keys[:, :1]
    shifted = torch.empty_like(bits)
    _mix(bits, shifted, 16)
    bits.mul_(_FIRST)
    _mix(bits, shifted, 15)
    bits.add_(keys[:, 1:]).mul_(_SECOND)
    _mix(bits, shifted, 16)
    bits.mul_(_FIRST)
    _mix(bits, shifted, 15)
    # Small u decide races, and float32 is finest there: 2^-32 is told from 2^-31.
    uniform = bits.bitwise_and_(0x7FFFFFFF).to(torch.float32).add_(0.5).mul_(2.0**-31).clamp_(max=_LARGEST)
    return uniform.neg_().log1p_().neg_()


def uniform(keys: Tensor) -> Tensor:
    """Returns a number in (0, 1) for each of keys [N, 2], float32 [N]: of a token that no vocabulary has."""
    beyond = torch.full((1,), -1, dtype=torch.int32, device=keys.device)
    return exponential(keys, beyond)[:, 0].neg_().exp_()


def _mix(bits: Tensor, shifted: Tensor, count: int) -> None:
    """bits ^= bits >> count, in place; the mask makes the shift a logical one."""
    torch.bitwise_right_shift(bits, count, out=shifted)
    bits.bitwise_xor_(shifted.bitwise_and_((1 << (32 - count)) - 1))


def _mix64(values: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """The finaliser of SplitMix64."""
    values = (values ^ (values >> np.uint64(30))) * _MIX_FIRST
    values = (values ^ (values >> np.uint64(27))) * _MIX_SECOND
    return values ^ (values >> np.uint64(31))


def _mix_bits(values: Tensor) -> Tensor:
    """`_mix64` of int64 numbers that hold the bits; masks make the shifts logical ones."""
    values = (values ^ (values >> 30 & (1 << 34) - 1)) * _signed(_MIX_FIRST)
    values = (values ^ (values >> 27 & (1 << 37) - 1)) * _signed(_MIX_SECOND)
    return values ^ (values >> 31 & (1 << 33) - 1)


def _signed(value: np.uint64) -> int:
    return int(value.astype(np.int64))
