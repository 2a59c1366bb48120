"""Blocks of quantised weights, against the values of the reference implementation."""

import json
from pathlib import Path

import numpy as np
import pytest

from corymb.models.gguf_blocks import FORMATS

NAMES = [known.name for known in FORMATS.values()]


@pytest.mark.parametrize("name", NAMES)
def test_blocks_decode_to_the_reference_values(name: str, data: Path) -> None:
    case = json.loads((data / "gguf_blocks.json").read_text())["formats"][name]
    layout = next(known for known in FORMATS.values() if known.name == name)
    blocks = np.array([list(bytes.fromhex(block)) for block in case["blocks"]], np.uint8)
    assert blocks.shape[1] == layout.block_bytes
    values = layout.decode(blocks)
    assert values.dtype == np.float32
    np.testing.assert_array_equal(values, np.array(case["values"], np.float32).reshape(values.shape))


@pytest.mark.parametrize("name", NAMES)
def test_each_block_is_decoded_by_itself(name: str) -> None:
    layout = next(known for known in FORMATS.values() if known.name == name)
    blocks = np.random.default_rng(3).integers(0, 64, (50, layout.block_bytes), dtype=np.uint8)
    whole = layout.decode(blocks)
    assert whole.shape == (50, layout.block_values)
    np.testing.assert_array_equal(whole[17:31], layout.decode(np.ascontiguousarray(blocks[17:31])))
