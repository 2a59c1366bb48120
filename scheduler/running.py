"""Requests that get a token a step, and the progress of every row."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from corymb.scheduler.admission import OUTPUT_CLIP
from corymb.scheduler.plan import Int32
from corymb.scheduler.request import Request


class Rows:
    """Progress by row of the request table, in arrays so that a decode step is planned without a loop over requests.

    Counts include what is in flight: they say how far a row is planned, not how far its results are known. Of drafts in
    flight they include none, so under speculation they are what the row has at least.
    """

    def __init__(self, num_rows: int) -> None:
        """All rows are free."""
        self.computed = np.zeros(num_rows, np.int32)  # tokens whose KV is written or in flight
        self.outputs = np.zeros(num_rows, np.int32)  # output tokens sampled or in flight
        self.pending = np.zeros(num_rows, np.int32)  # drafts in flight: so many more may have been computed and sampled
        self.max_new = np.zeros(num_rows, np.int32)
        self.last_step = np.full(num_rows, -1, np.int64)
        self.constrained = np.zeros(num_rows, np.bool_)  # whether a mask decides what the row may sample


@dataclass(frozen=True, slots=True)
class Batch:
    """Rows that decode together."""

    rows: Int32
    requests: Sequence[Request]


class Running:
    """Who decodes. Owns the order of rows within a decode step."""

    def __init__(self, rows: Rows) -> None:
        """Starts empty."""
        self._progress = rows
        self._by_row: dict[int, Request] = {}
        self._batch: Batch | None = None  # None when somebody joined or left since it was made

    def __len__(self) -> int:
        """How many run, those included whose last token is in flight."""
        return len(self._by_row)

    def __iter__(self) -> Iterator[Request]:
        """In order of joining."""
        return iter(self._by_row.values())

    def join(self, row: int, request: Request) -> None:
        """Gets a token a step from now on."""
        self._by_row[row] = request
        self._batch = None

    def leave(self, row: int) -> None:
        """Gets no more."""
        del self._by_row[row]
        self._batch = None

    def everyone(self) -> Batch:
        """All rows."""
        if self._batch is None:
            self._batch = Batch(np.fromiter(self._by_row, np.int32, len(self._by_row)), tuple(self._by_row.values()))
        return self._batch

    def wanting(self) -> Batch:
        """The rows that another token is wanted of: a request whose last one is in flight needs no further step."""
        everyone = self.everyone()
        wants = self._progress.outputs[everyone.rows] < self._progress.max_new[everyone.rows]
        if wants.all():
            return everyone
        return Batch(everyone.rows[wants], [everyone.requests[i] for i in np.flatnonzero(wants)])

    def output_room(self) -> int:
        """Output tokens still to come, each request's clipped as admission clips them."""
        rows = self.everyone().rows
        left = self._progress.max_new[rows] - self._progress.outputs[rows]
        return int(np.minimum(left, OUTPUT_CLIP).sum())

    def sliding_growth(self, window: int) -> int:
        """Sliding slots that rows shorter than the window will still take."""
        rows = self.everyone().rows
        computed = self._progress.computed[rows]
        final = computed + self._progress.max_new[rows] - self._progress.outputs[rows]
        return int((np.minimum(final, window) - np.minimum(computed, window)).sum())
