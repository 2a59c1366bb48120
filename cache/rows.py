"""The request table: where each open sequence's tokens lie."""

import numpy as np

from corymb.cache.slots import Int32
from corymb.cache.writes import TableWrites


class Rows:
    """Owns the rows, their page table, and how far each has come. Row 0 is padding and never handed out.

    A row's slots: [0, shared) the tree's   [shared, reserved) its own   [reserved, …) meaningless
    """

    def __init__(self, num_rows: int, context_length: int, page_size: int) -> None:
        self.table = np.zeros((num_rows, context_length), np.int32)
        self.reserved = np.zeros(num_rows, np.int32)
        self.shared = np.zeros(num_rows, np.int32)  # whole pages
        self.slid = np.zeros(num_rows, np.int32)  # the row's own sliding twins below this position are freed
        self.free = list(range(num_rows - 1, 0, -1))
        self._page_size = page_size
        self._written: list[tuple[int, int, int]] = []

    def open(self, prefix: Int32) -> int:
        """Takes a free row that starts with the tree's slots `prefix`."""
        row, length = self.free.pop(), len(prefix)
        self.reserved[row] = self.shared[row] = self.slid[row] = length
        self.write(row, 0, prefix)
        return row

    def close(self, row: int) -> None:
        """Gives the row back."""
        self.reserved[row] = self.shared[row] = self.slid[row] = 0
        self.free.append(row)

    def write(self, row: int, start: int, slots: Int32) -> None:
        """Replaces entries and remembers them for `take_writes`."""
        if len(slots):
            self.table[row, start : start + len(slots)] = slots
            self._written.append((row, start, start + len(slots)))

    def num_new_pages(self, rows: Int32, widths: Int32) -> int:
        """Returns how many pages the next `widths` tokens of these rows need beyond those they hold."""
        if self._page_size == 1:
            return int(widths.sum())
        starts = self.reserved[rows]
        return int((-(-(starts + widths) // self._page_size) - -(-starts // self._page_size)).sum())

    def extend(self, rows: Int32, widths: Int32, new_pages: Int32) -> Int32:
        """Gives each row its next `widths` slots, filling its last page first. Returns them flat, in row order."""
        starts = self.reserved[rows]
        ends = np.cumsum(widths, dtype=np.int32)
        positions = np.arange(ends[-1] if len(ends) else 0, dtype=np.int32) + np.repeat(starts - ends + widths, widths)
        slots = new_pages if self._page_size == 1 else self._fill_pages(rows, widths, positions, new_pages)
        self.table[np.repeat(rows, widths), positions] = slots
        self.reserved[rows] = starts + widths
        return slots

    def _fill_pages(self, rows: Int32, widths: Int32, positions: Int32, new_pages: Int32) -> Int32:
        size = np.int32(self._page_size)
        starts = self.reserved[rows]
        last_pages = self.table[rows, np.maximum(starts - 1, 0)] // size
        offsets = positions % size
        # Candidates are the rows' last pages, then the new ones; a new page begins at every offset 0.
        on_new = len(rows) - 1 + np.cumsum(offsets == 0)
        on_last = positions < np.repeat(-(-starts // size) * size, widths)
        pages = np.concatenate((last_pages, new_pages))
        index = np.where(on_last, np.repeat(np.arange(len(rows)), widths), on_new)
        slots: Int32 = (pages[index] * size + offsets).astype(np.int32, copy=False)
        return slots

    def own_slots(self, row: int, start: int) -> Int32:
        """Returns the first slots of the row's own pages from `start`, a page's beginning, to its reserved end."""
        return self.table[row, max(start, self.shared[row]) : self.reserved[row] : self._page_size]

    def slide(self, rows: Int32, edges: Int32) -> Int32:
        """Counts the rows' own sliding twins below these positions, beginnings of pages, as freed. Returns the first
        slots of the pages that this concerns."""
        starts = np.maximum(self.slid[rows], self.shared[rows])
        self.slid[rows] = np.maximum(self.slid[rows], edges)
        counts = np.maximum(edges - starts, 0) // self._page_size
        total = int(counts.sum())
        if not total:
            return self.table[0, :0]
        nth = np.arange(total) - np.repeat(np.cumsum(counts) - counts, counts)
        slots: Int32 = self.table[np.repeat(rows, counts), np.repeat(starts, counts) + nth * self._page_size]
        return slots

    def take_writes(self) -> TableWrites:
        """Returns the entries of open rows written since the last call, as they are now: an entry written twice has one
        value."""
        if not self._written:
            return TableWrites.none()
        spans = np.array(self._written, np.int32)
        self._written = []
        spans = spans[spans[:, 2] <= self.reserved[spans[:, 0]]]  # else its row was closed before anybody read it
        if not len(spans):
            return TableWrites.none()
        lengths = spans[:, 2] - spans[:, 1]
        ends = np.cumsum(lengths, dtype=np.int32)
        rows = np.repeat(spans[:, 0], lengths)
        positions = np.arange(ends[-1], dtype=np.int32) + np.repeat(spans[:, 1] - ends + lengths, lengths)
        return TableWrites(rows, positions, self.table[rows, positions])
