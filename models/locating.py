"""Plans of rows whose lengths the scheduler did not know yet, for runners that have them on the host."""

from dataclasses import replace

import numpy as np

from corymb.models.rows import Rows
from corymb.scheduler.plan import Int32, StepPlan, Windows


def locate(plan: StepPlan, rows: Rows) -> StepPlan:
    """The plan with each row where the device has it. Records the slots that it reserves in the page table."""
    windows = plan.windows
    assert windows is not None, "only plans with windows leave rows where the device has them"
    reserve(plan.rows, windows, plan.slots, rows)
    starts = rows.lengths.numpy()[plan.rows]
    num_prompt = np.fromiter((len(rows.prompts[row]) for row in plan.rows.tolist()), np.int32, plan.num_rows)
    slots = rows.table.numpy()[plan.rows, starts]
    # The token that was sampled last is an output already, though its keys are not written.
    return replace(plan, starts=starts, num_outputs=starts + 1 - num_prompt, slots=slots)


def reserve(plan_rows: Int32, windows: Windows, slots: Int32, rows: Rows) -> None:
    """Sets the page table's entries of newly reserved slots."""
    if not len(slots):
        return
    counts = windows.slot_counts
    ends = np.cumsum(counts, dtype=np.int32)
    nth = np.arange(len(slots), dtype=np.int32) - np.repeat(ends - counts, counts)
    rows.write_slots(np.repeat(plan_rows, counts), np.repeat(windows.slot_starts, counts) + nth, slots)


def widen(plan: StepPlan, rows: Rows, drafts: Int32, widths: Int32) -> StepPlan:
    """The located plan with rows of `widths` [R] tokens: their own, and behind it so many of `drafts` [R, P]."""
    places = np.arange(drafts.shape[1] + 1)
    known = np.concatenate((plan.token_ids[:, None], drafts), axis=1)
    positions = plan.starts[:, None] + places
    inside = places < widths[:, None]
    owners = np.repeat(plan.rows, widths)
    return replace(
        plan,
        widths=widths,
        token_ids=known[inside].astype(np.int32),
        slots=rows.table.numpy()[owners, positions[inside]],
        windows=None,
    )
