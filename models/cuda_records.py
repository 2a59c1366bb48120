"""Records of drafts on a GPU, where the device alone knows how far rows are and what of their last steps was kept."""

from dataclasses import replace

import numpy as np
import torch

from corymb.cache.config import CacheConfig
from corymb.cache.writes import StateWrites
from corymb.kernels.attention import RaggedLayout, StateMarks
from corymb.kernels.packing import Packed
from corymb.models.placement import Place
from corymb.models.records import Past, Replay, Stateful
from corymb.scheduler.plan import StepPlan

SLOTS, LANDMARKS, LANDMARK_SLOTS = range(3)  # lines of what the host says of a step's rows


class DeviceRecords:
    """Owns the records and, of every row, how many tokens its state has seen; see `models.records`."""

    def __init__(
        self, model: Stateful, config: CacheConfig, dtype: torch.dtype, place: Place, *, num_tokens: int
    ) -> None:
        """`num_tokens`: of a row and step, at most."""
        self.num_rows, self._num_tokens, self._place = config.num_rows, num_tokens, place
        lines = config.num_rows * num_tokens
        self._tensors = [place.zeros((lines, *spec.shape), spec.dtype or dtype) for spec in model.record_specs]
        self._seen = place.zeros((config.num_rows,), torch.int32)
        self._staged = place.zeros((3, lines), torch.int64)  # zero beyond the table's rows

    def pass_over(self, plan: StepPlan) -> None:
        """The states have seen the whole step: its tokens are here to stay."""
        self._seen[self._place(plan.rows.astype(np.int64))] = self._place(plan.starts + plan.widths)

    def stage(self, writes: StateWrites) -> None:
        """What the next step does to states: its rows come first in what is packed of it, and padding behind them."""
        assert writes.landmarks is not None, "tokens of the step may be taken back"
        lines = np.zeros((len(self._staged), self.num_rows), np.int64)
        parts = (writes.slots, writes.landmarks.positions, writes.landmarks.slots)
        for line, part in zip(lines, parts, strict=True):
            line[: len(part)] = part
        self._staged[:, : self.num_rows].copy_(self._place(lines), non_blocking=True)

    def layout(self, layout: RaggedLayout) -> RaggedLayout:
        """That of packed windows, whose rows leave their states alone."""
        assert len(layout.rows) <= self._staged.shape[1], "more rows than windows of all rows have tokens"
        return replace(layout, state_slots=self._staged[SLOTS, : len(layout.rows)], moves_states=False)

    def replay(self, packed: Packed, layout: RaggedLayout) -> Replay:
        """Of the step that is packed, in the layout of its windows. Each row counts as at its beginning from now on."""
        count, width = min(len(packed.rows), self.num_rows), self._num_tokens
        rows, starts = packed.rows[:count].long(), packed.starts[:count]
        seen = self._seen[rows]
        # Of padding, which stands at 0, nothing is known.
        widths = (starts - seen).clamp(0, width)
        positions = self._staged[LANDMARKS, :count]
        after = torch.where((seen < positions) & (positions <= starts), positions - seen, 0).int()
        self._seen[rows] = starts
        past = replace(
            layout,
            rows=packed.rows[:count],
            widths=widths,
            starts=seen,
            offsets=packed.rows[:count] * width,  # where a row's record begins
            state_slots=self._staged[SLOTS, :count],
            moves_states=True,
            marks=StateMarks(after, self._staged[LANDMARK_SLOTS, :count]),
        )
        owners = packed.owners.long().clamp(max=len(packed.rows) - 1)
        places = packed.rows[owners].long() * width + packed.places
        return Replay(self._tensors, Past(past, None), places)
