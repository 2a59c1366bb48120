"""The only types that cross from the scheduler to the runner.

A step is rows of (request row, number of new tokens). Every array here is numpy on the host; the runner keeps copies on
its device, by request row, and applies a plan's writes in the order of plans.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from corymb.cache.writes import HostCopies, SlidingWrites, StateWrites, TableWrites
from corymb.scheduler.messages import Logprob, LogprobOptions, Sampling

Int32 = NDArray[np.int32]
Bool = NDArray[np.bool_]

LAST_SAMPLED = -1  # in `StepPlan.token_ids`: take the token that this row sampled last, which the host may not know yet


@dataclass(frozen=True, slots=True)
class Opened:
    """A request took a row of the request table: what the device keeps by row until the next request takes it."""

    row: int
    prompt_ids: Int32
    output_ids: Int32  # not empty when a retracted request comes back
    sampling: Sampling
    logprobs: LogprobOptions | None
    embeds: bool = False  # the hidden state of its prompt's last token is wanted


@dataclass(frozen=True, slots=True)
class Windows:
    """How the R rows of a plan speculate: on a server that drafts, every plan of rows that decode has it.

    The rows go on from where the device has them: what their steps in flight accept, the host does not know yet, and
    the plan's `starts` and `num_outputs` are what they are at least. Up to `most` drafts of a row are verified behind
    its token. Slots were reserved for the farthest that it can get; the plan's `slots` are those that are new, and each
    token's own is looked up in the page table by its position.
    """

    most: Int32  # [R], drafts at most; 0 in rows that do not draft
    budget: int | None  # drafts to verify in all rows together; None for all
    slot_starts: Int32  # [R], position of a row's first new slot
    slot_counts: Int32  # [R]: table[rows[r], slot_starts[r] + j] = slots[offset[r] + j] for j below slot_counts[r]


@dataclass(frozen=True, slots=True)
class StepPlan:
    """One ragged step.

    R rows of the request table take part; row r computes tokens [starts[r], starts[r] + widths[r]) of its sequence, and
    T = widths.sum(). A runner applies a plan in this order: `opened`, `table`, `sliding`, the new tokens' slots
    (table[rows[r], starts[r] + j] = slots[offset[r] + j]), `states` up to the forward, the forward, the rest of
    `states`, sampling, last_sampled[row] = token. All of it comes behind the `copies` that are awaited.
    """

    step: int
    rows: Int32  # [R], each row at most once
    widths: Int32  # [R], at least 1
    starts: Int32  # [R], tokens of the sequence already in the cache
    token_ids: Int32  # [T]; LAST_SAMPLED only as a row's first token
    slots: Int32  # [T], full-pool slots that the new tokens' KV goes to; with `windows`, see there
    samples: Bool  # [R], False for a chunk that is not its prompt's last
    num_outputs: Int32  # [R], output tokens before the one sampled now: min_new_tokens and seeds depend on it
    opened: Sequence[Opened] = ()
    table: TableWrites = field(default_factory=TableWrites.none)
    sliding: SlidingWrites | None = None  # None where the model has no sliding-window layers
    states: StateWrites | None = None  # None where the model has no recurrent state
    copies: HostCopies = field(default_factory=HostCopies)  # between the pools of device and host
    prompt_logprobs_from: Int32 | None = None
    # [R], first position of the chunk (relative to its start) whose logits score the prompt's next token; widths[r] for
    # none. None when no row wants any.
    constrained: Int32 | None = None  # indices of sampling rows that wait for `StepResult.constrain`; None for none
    windows: Windows | None = None  # of rows that decode on a server that drafts; None elsewhere

    @property
    def num_rows(self) -> int:
        """R."""
        return len(self.rows)

    @property
    def num_tokens(self) -> int:
        """T."""
        return len(self.token_ids)


@dataclass(frozen=True, slots=True)
class Masks:
    """Which tokens may come next in some of a plan's constrained rows; the others of them have ended meanwhile. A row
    that drafts has a mask for each place of its window up to the first draft that its own forbids."""

    index: Int32  # [M], into the plan's rows, sorted
    bits: Int32  # [M, ceil(V / 32)], bit t % 32 of word t // 32 set where token t may come
    places: Int32 | None = None  # [M], drafts before it in the row's window; None for no drafts anywhere


@dataclass(frozen=True, slots=True)
class Drafts:
    """What the constrained rows of a plan are about to verify."""

    token_ids: Int32  # [N, num_drafts], in the order of `StepPlan.constrained`
    counts: Int32  # [N]


@dataclass(frozen=True, slots=True)
class Blocks:
    """How long blocks of drafts would have been accepted, had all of each been verified: sums, with the target's own
    tokens."""

    count: int
    lower: float  # what is known
    upper: float  # the most that is possible


@dataclass(frozen=True, slots=True)
class Drafted:
    """What speculation did in a step."""

    num_verified: Int32  # [R], drafts that were verified
    confidence: NDArray[np.float32] | None  # [R, num_drafts]: draft k's chance to be accepted if all before it are
    draft_s: float
    verify_s: float  # without what the step waited for masks
    num_allowed: Int32 | None = None  # [R], of the verified, drafts that might be accepted; None: all of them
    blocks: Blocks | None = None  # what became known in this step; None where nobody estimates
    settle_s: float = 0.0  # of `verify_s`, what came behind the target's forward, where that is told apart

    @property
    def allowed(self) -> Int32:
        """[R], verified drafts that might be accepted."""
        return self.num_verified if self.num_allowed is None else self.num_allowed


@dataclass(frozen=True, slots=True)
class Sampled:
    """What a finished step gave, on the host. Row r of the plan gave token_ids[offset[r] : offset[r] + counts[r]]."""

    token_ids: Int32  # [counts.sum()]
    counts: Int32  # [R], 0 where the plan's `samples` is False, else 1, and 1 more for each draft accepted
    forward_s: float
    logprobs: dict[int, list[Logprob]] = field(default_factory=dict)  # by index into the plan's rows, an entry a token
    prompt_logprobs: dict[int, list[Logprob]] = field(default_factory=dict)  # by index; positions of this chunk only
    errors: dict[int, str] = field(
        default_factory=dict
    )  # by index: this row's logits are unusable (NaN); fail it alone
    embeddings: dict[int, bytes] = field(default_factory=dict)  # by index; little-endian float32 of length 1
    drafted: Drafted | None = None  # None where nothing was drafted
    copied: int | None = None  # number of the last copies known to be done; None: the plan's own


class StepResult(Protocol):
    """A launched step."""

    def drafts(self) -> Drafts | None:
        """Blocks until the proposals of the constrained rows are on the host; None where none of them drafts. Called
        before `constrain`."""
        ...

    def constrain(self, masks: Masks) -> None:
        """Lets the plan's constrained rows sample. Called once, before `wait`, and only where the plan has such rows:
        as soon as the results of all steps before this one are known. The other rows do not wait for it."""
        ...

    def wait(self) -> Sampled:
        """Blocks until the step's samples are on the host. May be called once. Raises what the forward raised."""
        ...


class Runner(Protocol):
    """Turns plans into samples, in order. `launch` returns as soon as the step is queued."""

    def launch(self, plan: StepPlan) -> StepResult:
        """Queues one step behind those launched before. The plan's arrays must not change afterwards."""
        ...

    def copy(self, copies: HostCopies) -> None:
        """Does copies that belong to no step, and waits for them and all before them. Called while no step is on its
        way."""
        ...

    def close(self) -> None:
        """Waits for what is in flight and frees the device."""
        ...
