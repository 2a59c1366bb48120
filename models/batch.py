"""Makes one step's tensors from a plan."""

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from corymb.kernels.attention import RaggedLayout
from corymb.models.placement import Place
from corymb.models.rows import Rows
from corymb.scheduler.plan import Int32, StepPlan


def build_layout(plan: StepPlan, rows: Rows, place: Place) -> RaggedLayout:
    """Says where the plan's rows stand, and records their new slots in the page table."""
    offsets = np.zeros(plan.num_rows + 1, np.int32)
    np.cumsum(plan.widths, out=offsets[1:])
    row_of_token = np.repeat(plan.rows, plan.widths)
    positions = _positions(plan, offsets)
    rows.write_slots(row_of_token, positions, plan.slots)
    slots = place(plan.slots.astype(np.int64))
    sliding = None if rows.full_to_sliding is None else rows.full_to_sliding[slots].to(torch.int64)
    return RaggedLayout(
        rows=place(plan.rows),
        widths=place(plan.widths),
        starts=place(plan.starts),
        offsets=place(offsets),
        positions=place(positions.astype(np.int64)),
        slots=slots,
        sliding_slots=sliding,
        table=rows.table,
        full_to_sliding=rows.full_to_sliding,
        host_rows=plan.rows,
        host_widths=plan.widths,
        host_starts=plan.starts,
        state_slots=None if plan.states is None else place(plan.states.slots.astype(np.int64)),
        moves_states=plan.states is None or plan.states.landmarks is None,
    )


def lay_out(
    rows: Int32, widths: Int32, starts: Int32, *, table: Tensor, full_to_sliding: Tensor | None, place: Place
) -> RaggedLayout:
    """The next `widths` tokens of table rows that stand at `starts`, in the slots that the table has for them."""
    offsets = np.concatenate(([0], np.cumsum(widths))).astype(np.int32)
    positions = (np.arange(offsets[-1]) + np.repeat(starts - offsets[:-1], widths)).astype(np.int64)
    slots = table[place(np.repeat(rows, widths).astype(np.int64)), place(positions)].long()
    return RaggedLayout(
        rows=place(rows),
        widths=place(widths),
        starts=place(starts),
        offsets=place(offsets),
        positions=place(positions),
        slots=slots,
        sliding_slots=None if full_to_sliding is None else full_to_sliding[slots].long(),
        table=table,
        full_to_sliding=full_to_sliding,
        host_rows=rows,
        host_widths=widths,
        host_starts=starts,
    )


def gather_tokens(plan: StepPlan, layout: RaggedLayout, rows: Rows, place: Place) -> Tensor:
    """The plan's token ids, int64 [T], with the last sampled token where the host could not know it."""
    token_ids = place(plan.token_ids.astype(np.int64))
    relayed = np.flatnonzero(plan.token_ids < 0)
    if len(relayed) == plan.num_rows == plan.num_tokens:
        return rows.last_sampled[layout.rows]
    if len(relayed):
        row_of_token = np.repeat(plan.rows, plan.widths)
        token_ids[place(relayed)] = rows.last_sampled[place(row_of_token[relayed])]
    return token_ids


def _positions(plan: StepPlan, offsets: NDArray[np.int32]) -> NDArray[np.int32]:
    if plan.num_tokens == plan.num_rows:
        return plan.starts
    return np.arange(plan.num_tokens, dtype=np.int32) + np.repeat(plan.starts - offsets[:-1], plan.widths)
