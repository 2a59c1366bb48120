"""Reads the GGUF container: metadata and where each tensor's bytes lie. Values are decoded in `gguf_blocks`."""

import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from corymb.models.errors import SourceError
from corymb.models.gguf_blocks import FORMATS, Format

Bytes = npt.NDArray[np.uint8]

_SCALARS: dict[int, np.dtype[Any]] = {
    0: np.dtype("<u1"),
    1: np.dtype("<i1"),
    2: np.dtype("<u2"),
    3: np.dtype("<i2"),
    4: np.dtype("<u4"),
    5: np.dtype("<i4"),
    6: np.dtype("<f4"),
    7: np.dtype("?"),
    10: np.dtype("<u8"),
    11: np.dtype("<i8"),
    12: np.dtype("<f8"),
}
_STRING, _ARRAY = 8, 9
_MAX_DIMS = 4


@dataclass(frozen=True, slots=True)
class GgufTensor:
    """One tensor: rows of encoded blocks, still in the file."""

    name: str
    shape: tuple[int, ...]  # outermost first, as torch counts
    format: Format
    rows: Bytes  # [number of rows, bytes a row]; a view into the mapped file


@dataclass(frozen=True, slots=True)
class GgufFile:
    """An opened GGUF file. Tensors are views into a read-only mapping that lives as long as they do."""

    path: Path
    metadata: Mapping[str, Any]
    tensors: Mapping[str, GgufTensor]


def read_gguf(path: Path) -> GgufFile:
    """Opens a GGUF file of version 2 or 3; raises SourceError for anything else, cut-off files included."""
    try:
        data: Bytes = np.memmap(path, dtype=np.uint8, mode="r")
    except (OSError, ValueError) as error:  # ValueError: an empty file cannot be mapped
        raise SourceError(f"{path} cannot be read as a GGUF file: {error}.") from error
    try:
        return _parse(path, data)
    except (struct.error, IndexError, UnicodeDecodeError, OverflowError, ValueError) as error:
        raise SourceError(f"{path} is not a whole GGUF file: it is cut short or damaged.") from error


def _parse(path: Path, data: Bytes) -> GgufFile:
    reader = _Reader(data)
    if bytes(reader.take(4)) != b"GGUF":
        raise SourceError(f"{path} is not a GGUF file: it does not begin with 'GGUF'.")
    version = reader.number("<I")
    if version not in (2, 3):
        raise SourceError(f"{path} is GGUF version {version}; versions 2 and 3 can be read.")
    num_tensors, num_values = reader.number("<Q"), reader.number("<Q")
    metadata: dict[str, Any] = {}
    for _ in range(num_values):
        key = reader.string()
        metadata[key] = reader.value(reader.number("<I"))
    places = [_Place.read(reader) for _ in range(num_tensors)]
    alignment = int(metadata.get("general.alignment", 32))
    start = -(-reader.at // alignment) * alignment
    return GgufFile(path, metadata, {place.name: place.open(path, data, start) for place in places})


@dataclass(frozen=True, slots=True)
class _Place:
    """A tensor's entry in the table of contents."""

    name: str
    shape: tuple[int, ...]
    code: int
    offset: int

    @staticmethod
    def read(reader: "_Reader") -> "_Place":
        name = reader.string()
        num_dims = reader.number("<I")
        if num_dims > _MAX_DIMS:
            raise ValueError(f"{num_dims} dimensions")
        dims = [reader.number("<Q") for _ in range(num_dims)]
        return _Place(name, tuple(reversed(dims)) or (1,), reader.number("<I"), reader.number("<Q"))

    def open(self, path: Path, data: Bytes, start: int) -> GgufTensor:
        layout = FORMATS.get(self.code)
        if layout is None:
            known = ", ".join(sorted(known.name for known in FORMATS.values()))
            raise SourceError(f"{path}: tensor {self.name} has GGUF type {self.code}; these can be read: {known}.")
        width = self.shape[-1]
        if width % layout.block_values:
            raise ValueError(f"rows of {width} values are not whole blocks")
        row_bytes = width // layout.block_values * layout.block_bytes
        num_rows = int(np.prod(self.shape[:-1], dtype=np.int64))
        begin = start + self.offset
        if begin + num_rows * row_bytes > len(data):
            raise ValueError(f"{self.name} ends behind the end of the file")
        rows = data[begin : begin + num_rows * row_bytes].reshape(num_rows, row_bytes)
        return GgufTensor(self.name, self.shape, layout, rows)


class _Reader:
    """Reads one value after another, never past the end."""

    def __init__(self, data: Bytes) -> None:
        self._data = data.data
        self.at = 0

    def take(self, size: int) -> memoryview:
        if size > len(self._data) - self.at:
            raise ValueError("past the end of the file")
        self.at += size
        return self._data[self.at - size : self.at]

    def number(self, layout: str) -> int:
        return int(struct.unpack(layout, self.take(struct.calcsize(layout)))[0])

    def string(self) -> str:
        # Some vocabularies hold pieces that are no valid UTF-8; they must not make the file unreadable.
        return str(self.take(self.number("<Q")), "utf-8", "replace")

    def value(self, kind: int) -> Any:
        if kind == _STRING:
            return self.string()
        if kind == _ARRAY:
            return self._array(self.number("<I"), self.number("<Q"))
        return self._scalars(kind, 1)[0].item()

    def _array(self, kind: int, length: int) -> Any:
        if kind == _STRING:
            return [self.string() for _ in range(length)]
        if kind == _ARRAY:
            raise ValueError("arrays of arrays are not part of any known model")
        return self._scalars(kind, length)

    def _scalars(self, kind: int, length: int) -> npt.NDArray[Any]:
        dtype = _SCALARS.get(kind)
        if dtype is None:
            raise ValueError(f"unknown value type {kind}")
        values: npt.NDArray[Any] = np.frombuffer(self.take(length * dtype.itemsize), dtype)
        return values
