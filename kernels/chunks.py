"""Where the rows of a step are cut: at multiples of GRID of their sequences' positions."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from corymb.kernels.attention import RaggedLayout
from corymb.kernels.recurrence import GRID

Int32 = NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class Chunks:
    """The pieces of all rows, in order. A piece of GRID tokens is whole; others begin or end within the grid."""

    rows: Int32  # [P], the row of each piece, an index into the layout's rows
    firsts: Int32  # [P + 1], the step's token that a piece begins with; the last one ends the step
    row_chunks: Int32  # [R + 1], the first piece of each row


def cut(layout: RaggedLayout) -> Chunks:
    """Cuts the rows of a step."""
    starts, widths = layout.host_starts.astype(np.int64), layout.host_widths.astype(np.int64)
    counts = (starts + widths - 1) // GRID - starts // GRID + 1
    row_chunks = np.concatenate(([0], np.cumsum(counts)))
    rows = np.repeat(np.arange(len(widths)), counts)
    lines = starts[rows] // GRID + np.arange(row_chunks[-1]) - row_chunks[rows]
    begun = np.maximum(lines * GRID, starts[rows]) - starts[rows]  # tokens of the row before the piece
    offsets = np.cumsum(widths) - widths
    firsts = np.append(offsets[rows] + begun, widths.sum())
    return Chunks(rows.astype(np.int32), firsts.astype(np.int32), row_chunks.astype(np.int32))
