"""Decodes GGUF's blocks of quantised weights, many blocks at a time, to the values that llama.cpp computes with.

A decoder takes uint8 [n, bytes of a block] and gives float32 [n, values of a block]. Scales are float16 or smaller
integers times float16, so that nearly every product below is exact in float32.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Blocks = npt.NDArray[np.uint8]
Floats = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Format:
    """How a tensor's values are stored."""

    name: str
    block_values: int
    block_bytes: int
    decode: Callable[[Blocks], Floats]


def _half(blocks: Blocks, at: int) -> Floats:
    """The float16 at byte `at` of each block, as a column."""
    return blocks[:, at : at + 2].copy().view(np.float16).astype(np.float32)


def _nibbles(packed: Blocks) -> Blocks:
    """All low halves, then all high halves."""
    return np.concatenate([packed & 0x0F, packed >> 4], axis=1)


def _fifth_bits(blocks: Blocks, at: int) -> Blocks:
    """The 32 single bits at byte `at`, moved to where the fifth bit of a value is."""
    return np.unpackbits(blocks[:, at : at + 4], axis=1, bitorder="little") << np.uint8(4)


def _f32(blocks: Blocks) -> Floats:
    return blocks.view(np.float32)


def _f16(blocks: Blocks) -> Floats:
    return blocks.view(np.float16).astype(np.float32)


def _bf16(blocks: Blocks) -> Floats:
    return (blocks.view(np.uint16).astype(np.uint32) << np.uint32(16)).view(np.float32)


def _q4_0(blocks: Blocks) -> Floats:
    values = _nibbles(blocks[:, 2:]).astype(np.float32)
    values -= np.float32(8)
    values *= _half(blocks, 0)
    return values


def _q4_1(blocks: Blocks) -> Floats:
    values = _nibbles(blocks[:, 4:]).astype(np.float32)
    values *= _half(blocks, 0)
    values += _half(blocks, 2)
    return values


def _q5_0(blocks: Blocks) -> Floats:
    values = _nibbles(blocks[:, 6:]) | _fifth_bits(blocks, 2)
    return _half(blocks, 0) * (values.astype(np.float32) - np.float32(16))


def _q5_1(blocks: Blocks) -> Floats:
    values = _nibbles(blocks[:, 8:]) | _fifth_bits(blocks, 4)
    return _half(blocks, 0) * values.astype(np.float32) + _half(blocks, 2)


def _q8_0(blocks: Blocks) -> Floats:
    values = blocks[:, 2:].view(np.int8).astype(np.float32)
    values *= _half(blocks, 0)
    return values


def _crumbs(packed: Blocks) -> Blocks:
    """The four 2-bit values of each byte: [n, bytes] to [n, bytes / 32, 4, 32]."""
    groups = packed.reshape(len(packed), -1, 1, 32)
    return (groups >> np.array([0, 2, 4, 6], np.uint8).reshape(1, 1, 4, 1)) & np.uint8(3)


def _q2_k(blocks: Blocks) -> Floats:
    scales = blocks[:, :16]
    high = _half(blocks, 80) * (scales & 0x0F).astype(np.float32)
    low = _half(blocks, 82) * (scales >> 4).astype(np.float32)
    values = _crumbs(blocks[:, 16:80]).reshape(-1, 16, 16).astype(np.float32)
    return (high[:, :, None] * values - low[:, :, None]).reshape(-1, 256)


def _q3_k(blocks: Blocks) -> Floats:
    mask, packed, small = blocks[:, :32], blocks[:, 32:96], blocks[:, 96:108]
    # Sixteen 6-bit scales: four low bits in bytes 0 to 7, two high bits spread over bytes 8 to 11.
    low = np.concatenate([small[:, :8] & 0x0F, small[:, :8] >> 4], axis=1)
    shifts = np.array([0, 2, 4, 6], np.uint8).reshape(1, 4, 1)
    high = ((small[:, None, 8:12] >> shifts) & np.uint8(3)).reshape(-1, 16)
    scales = (low | (high << np.uint8(4))).astype(np.float32) - np.float32(32)
    # A cleared bit of the mask stands for -4.
    bits = np.arange(8, dtype=np.uint8).reshape(1, 8, 1)
    cleared = ((mask[:, None, :] >> bits) & np.uint8(1)) ^ np.uint8(1)
    values = _crumbs(packed).reshape(-1, 16, 16).astype(np.float32)
    values -= cleared.reshape(-1, 16, 16).astype(np.float32) * np.float32(4)
    values *= (_half(blocks, 108) * scales)[:, :, None]
    return values.reshape(-1, 256)


def _k_scales(blocks: Blocks) -> tuple[Floats, Floats]:
    """Q4_K and Q5_K: eight scales and eight minima of 6 bits each in bytes 4 to 15, times their float16 factors."""
    packed = blocks[:, 4:16]
    first, second, third = packed[:, :4], packed[:, 4:8], packed[:, 8:]
    scales = np.concatenate([first & 0x3F, (third & 0x0F) | ((first >> 6) << np.uint8(4))], axis=1)
    minima = np.concatenate([second & 0x3F, (third >> 4) | ((second >> 6) << np.uint8(4))], axis=1)
    return _half(blocks, 0) * scales.astype(np.float32), _half(blocks, 2) * minima.astype(np.float32)


def _halves(packed: Blocks) -> Blocks:
    """Of each 32 bytes the low halves, then the high halves: [n, 128] to [n, 8, 32]."""
    groups = packed.reshape(-1, 4, 1, 32)
    return ((groups >> np.array([0, 4], np.uint8).reshape(1, 1, 2, 1)) & np.uint8(0x0F)).reshape(-1, 8, 32)


def _q4_k(blocks: Blocks) -> Floats:
    scales, minima = _k_scales(blocks)
    values = _halves(blocks[:, 16:]).astype(np.float32)
    return (scales[:, :, None] * values - minima[:, :, None]).reshape(-1, 256)


def _q5_k(blocks: Blocks) -> Floats:
    scales, minima = _k_scales(blocks)
    bits = np.arange(8, dtype=np.uint8).reshape(1, 8, 1)
    fifth = ((blocks[:, None, 16:48] >> bits) & np.uint8(1)) << np.uint8(4)
    values = (_halves(blocks[:, 48:]) | fifth).astype(np.float32)
    return (scales[:, :, None] * values - minima[:, :, None]).reshape(-1, 256)


def _q6_k(blocks: Blocks) -> Floats:
    low, high = blocks[:, :128].reshape(-1, 2, 1, 64), blocks[:, 128:192].reshape(-1, 2, 1, 32)
    low = ((low >> np.array([0, 4], np.uint8).reshape(1, 1, 2, 1)) & np.uint8(0x0F)).reshape(-1, 2, 4, 32)
    high = (high >> np.array([0, 2, 4, 6], np.uint8).reshape(1, 1, 4, 1)) & np.uint8(3)
    values = (low | (high << np.uint8(4))).reshape(-1, 16, 16).astype(np.float32) - np.float32(32)
    scales = blocks[:, 192:208].view(np.int8).astype(np.float32)
    return ((_half(blocks, 208) * scales)[:, :, None] * values).reshape(-1, 256)


# By the type codes of the file format.
FORMATS = {
    0: Format("F32", 1, 4, _f32),
    1: Format("F16", 1, 2, _f16),
    2: Format("Q4_0", 32, 18, _q4_0),
    3: Format("Q4_1", 32, 20, _q4_1),
    6: Format("Q5_0", 32, 22, _q5_0),
    7: Format("Q5_1", 32, 24, _q5_1),
    8: Format("Q8_0", 32, 34, _q8_0),
    10: Format("Q2_K", 256, 84, _q2_k),
    11: Format("Q3_K", 256, 110, _q3_k),
    12: Format("Q4_K", 256, 144, _q4_k),
    13: Format("Q5_K", 256, 176, _q5_k),
    14: Format("Q6_K", 256, 210, _q6_k),
    30: Format("BF16", 1, 2, _bf16),
}
