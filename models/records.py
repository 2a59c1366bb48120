"""Drafts that recurrent states have not seen: what layers keep of them until it is known which of them count.

A state forgets as it takes a token in, so it cannot give one back; and a copy of it behind every draft would take far
more room than what it is given of one (`StateSpec` of `Model.record_specs` against those of `Model.state_specs`). So in
a step that drafts all states stay where they are, at its beginning, and each layer records its tokens. The row's next
step takes those that were kept through the state first, by the same operations: the bits are those of decoding.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from corymb.cache.config import CacheConfig
from corymb.cache.writes import Landmarks
from corymb.kernels.attention import RaggedLayout, StateMarks
from corymb.models.batch import lay_out
from corymb.models.placement import Place
from corymb.models.rows import Rows
from corymb.models.states import StatePools, StateSpec
from corymb.scheduler.plan import Int32, StepPlan

# What a layer does with its parts of T tokens, each [T, …], and its states: returns what they give.
Fold = Callable[[Sequence[Tensor], Sequence[Tensor], RaggedLayout], Tensor]


class Drafting(Protocol):
    """What is asked here of a server's speculation."""

    @property
    def num_drafts(self) -> int:
        """Most drafts of a row and step."""
        ...


def num_recorded(speculation: Drafting | None) -> int:
    """Tokens of a row and step that may be taken back: the drafts, and the one that they follow."""
    return speculation.num_drafts + 1 if speculation else 0


class Stateful(Protocol):
    """What is asked here of a model (see models.model)."""

    @property
    def state_specs(self) -> Sequence[StateSpec]:
        """What each sequence carries."""
        ...

    @property
    def record_specs(self) -> Sequence[StateSpec]:
        """What is recorded of one token."""
        ...


def make_states(
    model: Stateful, config: CacheConfig, dtype: torch.dtype, place: Place, *, num_recorded: int
) -> StatePools | None:
    """The pools of a model's states; None where it has none. `num_recorded`: tokens of a row and step that may be taken
    back, 0 on a server that does not draft."""
    if not model.state_specs:
        return None
    records = None
    if num_recorded:
        specs = model.record_specs
        records = Records(specs, num_rows=config.num_rows, num_tokens=num_recorded, dtype=dtype, place=place)
    return StatePools(model.state_specs, config.num_states, dtype=dtype, place=place, records=records)


@dataclass(frozen=True, slots=True)
class Past:
    """Tokens that rows' states have not seen, and that were kept."""

    layout: RaggedLayout
    records: Tensor | None  # int64 [T], where they are; None: where the layout's offsets say


class Replay:
    """One step's view of the records."""

    def __init__(self, records: Sequence[Tensor], past: Past | None, places: Tensor) -> None:
        """`places` [T]: where the step's own tokens are recorded."""
        self._records = records
        self._past = past
        self._places = places

    def advance(self, record: int, parts: Sequence[Tensor], states: Sequence[Tensor], fold: Fold) -> None:
        """Brings a layer's states to the beginning of the step, of which it then records the parts."""
        kept, past = self._records[record], self._past
        if past is not None:
            sizes = [part.shape[1] for part in parts]
            tokens = kept if past.records is None else kept.index_select(0, past.records)
            fold(torch.split(tokens, sizes, dim=1), states, past.layout)
        kept.index_copy_(0, self._places, torch.cat(list(parts), dim=1).to(kept.dtype))


class Records:
    """Owns the records, and knows how far each row's states have come. Follows the steps in their order."""

    def __init__(
        self, specs: Sequence[StateSpec], *, num_rows: int, num_tokens: int, dtype: torch.dtype, place: Place
    ) -> None:
        """`num_tokens`: of a row and step, at most."""
        self._num_tokens = num_tokens
        self._tensors = [place.zeros((num_rows * num_tokens, *spec.shape), spec.dtype or dtype) for spec in specs]
        self._seen = np.zeros(num_rows, np.int32)
        self._place = place

    def pass_over(self, plan: StepPlan) -> None:
        """The states have seen the whole step: its tokens are here to stay."""
        self._seen[plan.rows] = plan.starts + plan.widths

    def open(self, plan: StepPlan, landmarks: Landmarks, rows: Rows) -> Replay:
        """A step whose tokens may be taken back. The plan says where its rows are."""
        assert plan.widths.max() <= self._num_tokens, "more tokens than a row records"
        past = self._past(plan, landmarks, rows)
        self._seen[plan.rows] = plan.starts
        return Replay(self._tensors, past, self._at(plan.rows, plan.widths))

    def _past(self, plan: StepPlan, landmarks: Landmarks, rows: Rows) -> Past | None:
        assert plan.states is not None, "a model with states has a plan for them"
        seen, place = self._seen[plan.rows], self._place
        goes = np.flatnonzero(plan.starts > seen)
        if not len(goes):
            return None
        begins, ends, positions = seen[goes], plan.starts[goes], landmarks.positions[goes]
        chosen, widths = plan.rows[goes], ends - begins
        passed = (begins < positions) & (positions <= ends)
        after = np.where(passed, positions - begins, 0).astype(np.int32)
        marks = StateMarks(place(after), place(landmarks.slots[goes].astype(np.int64)), after)
        layout = lay_out(chosen, widths, begins, table=rows.table, full_to_sliding=rows.full_to_sliding, place=place)
        layout = replace(
            layout,
            state_slots=place(plan.states.slots[goes].astype(np.int64)),
            marks=marks if passed.any() else None,
        )
        return Past(layout, self._at(chosen, widths))

    def _at(self, rows: Int32, widths: Int32) -> Tensor:
        """Where the first `widths` tokens of the rows' steps are recorded."""
        offsets = np.cumsum(widths) - widths
        begins = rows.astype(np.int64) * self._num_tokens
        return self._place(np.repeat(begins - offsets, widths) + np.arange(widths.sum()))
