"""Parts of a step, and how they are put together into a plan."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from corymb.cache.cache import Cache
from corymb.scheduler.plan import LAST_SAMPLED, Bool, Int32, Opened, StepPlan, Windows
from corymb.scheduler.request import Request
from corymb.scheduler.running import Batch, Rows


@dataclass(frozen=True, slots=True)
class Piece:
    """Tokens [start, start + width) of a request's known tokens, to be computed by one step into `slots`."""

    request: Request
    row: int
    start: int
    width: int
    slots: Int32
    opened: Opened | None  # None for a chunk that is not its request's first

    @property
    def is_last(self) -> bool:
        """Whether it ends with the last known token, so that the next one can be sampled."""
        return self.start + self.width == len(self.request.token_ids)


@dataclass(frozen=True, slots=True)
class Part:
    """Rows of one kind; fields as in StepPlan."""

    requests: Sequence[Request]
    rows: Int32
    widths: Int32
    starts: Int32
    token_ids: Int32
    slots: Int32
    samples: Bool
    num_outputs: Int32
    scores_from: Int32 | None = None
    windows: Windows | None = None
    pending: Int32 | None = (
        None  # with windows: drafts of each row in steps before this one whose results are not known
    )


def decode_part(batch: Batch, slots: Int32, progress: Rows, windows: Windows | None = None) -> Part:
    """One token each, the one the row sampled last, and the drafts that `windows` allows behind it."""
    count = len(batch.rows)
    return Part(
        requests=batch.requests,
        rows=batch.rows,
        widths=np.ones(count, np.int32),
        starts=progress.computed[batch.rows],
        token_ids=np.full(count, LAST_SAMPLED, np.int32),
        slots=slots,
        samples=np.ones(count, np.bool_),
        num_outputs=progress.outputs[batch.rows],
        windows=windows,
        pending=None if windows is None else progress.pending[batch.rows],
    )


def prefill_part(pieces: Sequence[Piece], progress: Rows) -> Part:
    """Known tokens."""
    rows = np.array([piece.row for piece in pieces], np.int32)
    scores = [_scores_from(piece) for piece in pieces]
    unscored = all(start == piece.width for start, piece in zip(scores, pieces, strict=True))
    return Part(
        requests=[piece.request for piece in pieces],
        rows=rows,
        widths=np.array([piece.width for piece in pieces], np.int32),
        starts=np.array([piece.start for piece in pieces], np.int32),
        token_ids=np.concatenate([p.request.token_ids[p.start : p.start + p.width] for p in pieces]),
        slots=np.concatenate([piece.slots for piece in pieces]),
        samples=np.array([p.is_last and p.request.sampling.max_new_tokens > 0 for p in pieces], np.bool_),
        num_outputs=progress.outputs[rows],
        scores_from=None if unscored else np.array(scores, np.int32),
    )


def _scores_from(piece: Piece) -> int:
    first = piece.request.score_from()
    if first is None:
        return piece.width
    start = max(first - piece.start, 0)
    # The last prompt token's logits score no prompt token.
    return start if piece.start + start < piece.request.num_prompt - 1 else piece.width


def put_together(
    step: int, parts: Sequence[Part], opened: Sequence[Opened], cache: Cache, constrained: Bool
) -> StepPlan:
    """The plan of one step; takes the cache's table writes along. `constrained` tells it of every row of the table."""
    one = parts[0] if len(parts) == 1 else _concatenate(parts)
    waiting = np.flatnonzero(constrained[one.rows] & one.samples).astype(np.int32)
    if one.pending is None:
        states = cache.take_state_writes(one.rows, one.starts + one.widths)
    else:
        states = cache.pass_states(one.rows, one.starts, one.pending)
    table = cache.take_table_writes()
    return StepPlan(
        step=step,
        rows=one.rows,
        widths=one.widths,
        starts=one.starts,
        token_ids=one.token_ids,
        slots=one.slots,
        samples=one.samples,
        num_outputs=one.num_outputs,
        opened=opened,
        table=table,
        sliding=cache.take_sliding_writes(),
        states=states,
        copies=cache.take_host_copies(one.slots, table, states),
        prompt_logprobs_from=one.scores_from,
        constrained=waiting if len(waiting) else None,
        windows=one.windows,
    )


def _concatenate(parts: Sequence[Part]) -> Part:
    assert all(part.windows is None for part in parts), "rows that draft share no step with prompts"
    scored = any(part.scores_from is not None for part in parts)
    scores = [part.widths if part.scores_from is None else part.scores_from for part in parts]
    return Part(
        requests=[request for part in parts for request in part.requests],
        rows=np.concatenate([part.rows for part in parts]),
        widths=np.concatenate([part.widths for part in parts]),
        starts=np.concatenate([part.starts for part in parts]),
        token_ids=np.concatenate([part.token_ids for part in parts]),
        slots=np.concatenate([part.slots for part in parts]),
        samples=np.concatenate([part.samples for part in parts]),
        num_outputs=np.concatenate([part.num_outputs for part in parts]),
        scores_from=np.concatenate(scores) if scored else None,
    )
