"""What the requests with penalties have said, by request row, on the device."""

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from corymb.kernels.logit_edits import Penalties
from corymb.models.placement import Place
from corymb.scheduler.plan import Int32

_FIRST_WIDTH = 256


class Said:
    """Owns, for every row with penalties, the distinct tokens of prompt and output and how often the output has them.

    A list and not a count for each token of the vocabulary: rows say a few hundred different tokens, and one step reads
    all it has. Grows with the rows and tokens that need it; rows without penalties cost nothing.
    """

    # A line of `token_ids`: [0, num_distinct) said   [num_distinct, width) zeros

    def __init__(self, num_rows: int, place: Place) -> None:
        self._place = place
        self._line_of_row: NDArray[np.int64] = np.full(num_rows, -1, np.int64)
        self._most_distinct = np.zeros(0, np.int64)  # by line; the host's upper bound
        device = place.device
        self._token_ids = torch.zeros((0, _FIRST_WIDTH), dtype=torch.int64, device=device)
        self._counts = torch.zeros((0, _FIRST_WIDTH), dtype=torch.float32, device=device)
        self._num_distinct = torch.zeros(0, dtype=torch.int64, device=device)

    def open(self, row: int, prompt_ids: Int32, output_ids: Int32) -> None:
        """A request with penalties took the row."""
        distinct, index = np.unique(np.concatenate((prompt_ids, output_ids)), return_inverse=True)
        counts = np.bincount(index[len(prompt_ids) :], minlength=len(distinct))
        line = self._line(row, len(distinct))
        self._token_ids[line, : len(distinct)] = self._place(distinct.astype(np.int64))
        self._counts[line, : len(distinct)] = self._place(counts.astype(np.float32))
        self._num_distinct[line].fill_(len(distinct))  # an assignment would wait for the device
        self._most_distinct[line] = len(distinct)

    def append(self, rows: Int32, token_ids: Tensor) -> None:
        """Each of the rows said one more token, int64 [N]."""
        lines = self._line_of_row[rows]
        self._most_distinct[lines] += 1
        self._append(lines, token_ids, None)

    def append_runs(self, rows: Int32, token_ids: Tensor, counts: Tensor, most: Int32) -> None:
        """Each of the rows said the first `counts` [N] of token_ids [N, P]; that makes `most` [N] tokens at most."""
        lines = self._line_of_row[rows]
        self._most_distinct[lines] = np.minimum(self._most_distinct[lines] + token_ids.shape[1], most)
        for place in range(token_ids.shape[1]):
            self._append(lines, token_ids[:, place], place < counts)

    def _append(self, lines: NDArray[np.int64], token_ids: Tensor, says: Tensor | None) -> None:
        """`says`: which lines are meant, bool [N]; None for all."""
        width = int(self._most_distinct[lines].max()) + 1
        self._widen(width)
        at = self._place(lines)
        length = self._num_distinct[at]
        known = self._token_ids[at, :width] == token_ids[:, None]
        known &= self._columns(width) < length[:, None]
        new = ~known.any(dim=1)
        column = torch.where(new, length, known.to(torch.uint8).argmax(dim=1))
        counts = torch.where(new, 0.0, self._counts[at, column]) + 1
        if says is not None:
            # What lies behind a line's length is nobody's, so a token that is not said may be left there.
            new = new & says
            counts = torch.where(says, counts, self._counts[at, column])
        self._token_ids[at, column] = token_ids
        self._counts[at, column] = counts
        self._num_distinct[at] = length + new

    def lists(self, rows: Int32) -> tuple[Tensor, Tensor]:
        """Token ids and output counts [N, L] of rows, filled up with repeats of the first entry."""
        lines = self._line_of_row[rows]
        width = int(self._most_distinct[lines].max())
        at = self._place(lines)
        column = self._columns(width)
        column = torch.where(column < self._num_distinct[at][:, None], column, 0)
        return self._token_ids[at[:, None], column], self._counts[at[:, None], column]

    def penalties(self, index: NDArray[np.int64], rows: Int32, weights: NDArray[np.float32]) -> Penalties:
        """Penalties for `rows`, at `index` of the logits, with repetition, presence, frequency in `weights` [3, N]."""
        token_ids, counts = self.lists(rows)
        repetition, presence, frequency = self._place(weights)
        return Penalties(self._place(index), token_ids, counts, repetition, presence, frequency)

    def _columns(self, width: int) -> Tensor:
        return torch.arange(width, device=self._place.device)

    def _line(self, row: int, width: int) -> int:
        """The row's line, made where it has none yet."""
        self._widen(width)
        if self._line_of_row[row] < 0:
            self._line_of_row[row] = len(self._most_distinct)
            self._most_distinct = np.append(self._most_distinct, 0)
        if len(self._most_distinct) > len(self._num_distinct):
            self._lengthen()
        return int(self._line_of_row[row])

    def _lengthen(self) -> None:
        more = max(8, len(self._num_distinct))
        self._token_ids = torch.nn.functional.pad(self._token_ids, (0, 0, 0, more))
        self._counts = torch.nn.functional.pad(self._counts, (0, 0, 0, more))
        self._num_distinct = torch.nn.functional.pad(self._num_distinct, (0, more))

    def _widen(self, width: int) -> None:
        missing = width - self._token_ids.shape[1]
        if missing > 0:
            more = max(missing, self._token_ids.shape[1])
            self._token_ids = torch.nn.functional.pad(self._token_ids, (0, more))
            self._counts = torch.nn.functional.pad(self._counts, (0, more))
