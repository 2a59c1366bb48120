"""Which tensors of a checkpoint are packed as MXFP4: four bits a number, and a power of two for each 32. No torch."""

from dataclasses import replace
from pathlib import Path

from corymb.models.errors import BrokenModel
from corymb.models.headers import Stored, StoredTensor

PACKED = "MXFP4"
BLOCKS, SCALES = "_blocks", "_scales"
BLOCK_BYTES = 16
BLOCK_NUMBERS = 2 * BLOCK_BYTES


def unpacked(stored: Stored, folder: Path) -> Stored:
    """The tensors as a model takes them: a packed one in place of its blocks and scales. Raises BrokenModel."""
    names = [name.removesuffix(BLOCKS) for name in stored if name.endswith(BLOCKS)]
    others = {name: one for name, one in stored.items() if not name.endswith((BLOCKS, SCALES))}
    return others | {name: _unpacked(name, stored, folder) for name in names}


def packed_names(stored: Stored) -> frozenset[str]:
    """Which of the tensors that a model takes are packed."""
    return frozenset(name.removesuffix(BLOCKS) for name in stored if name.endswith(BLOCKS))


def _unpacked(name: str, stored: Stored, folder: Path) -> StoredTensor:
    """Blocks [experts, outputs, groups, 16] and scales [experts, outputs, groups] are stored; a model takes
    [experts, inputs, outputs]."""
    blocks, scales = stored[name + BLOCKS], stored.get(name + SCALES)
    if scales is None:
        raise BrokenModel(f"{folder} holds {name + BLOCKS}, but not {name + SCALES}; download it again.")
    shaped = len(blocks.shape) == 4 and blocks.shape == (*scales.shape, BLOCK_BYTES)
    if not shaped or blocks.dtype != "U8" or scales.dtype != "U8":
        raise BrokenModel(
            f"{name} in {blocks.file} is not packed as MXFP4: its blocks are {blocks.dtype} {list(blocks.shape)}, "
            f"its scales {scales.dtype} {list(scales.shape)}."
        )
    experts, outputs, groups = scales.shape
    return replace(blocks, dtype=PACKED, shape=(experts, groups * BLOCK_NUMBERS, outputs))
