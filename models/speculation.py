"""What a runner asks of a drafter."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from corymb.kernels.attention import RaggedLayout
from corymb.scheduler.plan import Int32, Opened


@dataclass(frozen=True, slots=True)
class DraftTurn:
    """R rows that draft. A row's anchor is the token it sampled last: its keys are not written, and it stands at
    position lengths[r]. The page table has slots for the anchor and every draft behind it."""

    host_rows: Int32  # [R], request rows
    rows: Tensor  # the same, int64 on the device
    anchors: Tensor  # int64 [R]
    lengths: Tensor  # int32 [R], tokens whose keys are written
    table: Tensor  # int32 [num_rows, context_length], the page table
    full_to_sliding: Tensor | None
    temperature: Tensor  # float32 [R]; 0: drafts are the likeliest tokens
    # int32 [R, num_drafts, 2], see kernels.noise: what the target itself would draw each place with, so that drafts of
    # rows with a seed meet it as often as can be.
    keys: Tensor


@dataclass(frozen=True, slots=True)
class Proposal:
    """Drafts of R rows."""

    token_ids: Tensor  # int64 [R, num_drafts], inside the target's vocabulary also beyond `counts`
    counts: Tensor | None = None  # int32 [R], drafts that a row has; None: all have num_drafts
    # float32 [R, num_drafts, V]: draft k was drawn from softmax(logits[k] / temperature), -inf for what it cannot be.
    # None: drafts are certain given what is before them.
    logits: Tensor | None = None
    confidence: Tensor | None = None  # float32 [R, num_drafts], chance that draft k is accepted if all before it are


@dataclass(frozen=True, slots=True)
class Seen:
    """A step that the target has computed."""

    layout: RaggedLayout
    token_ids: Tensor  # int64 [T]
    features: Tensor | None  # [T, len(layers) * hidden_size] of the layers that the drafter asked for, in their order
    keep: Tensor | None  # bool [T], False for drafts that were not accepted; None: all stay


class Drafter(Protocol):
    """Proposes tokens. What it keeps of a token lies in the slot of the target (`Seen.layout.slots`), so that a prefix
    hit serves it as it serves the target: it sees each token once, whoever finds it in the tree later."""

    num_drafts: int  # drafts a row and step
    layers: Sequence[int]  # layers of the target, from 0, whose residual stream after the layer it wants to see

    def open(self, opened: Opened) -> None:
        """A request took a row."""
        ...

    def propose(self, turn: DraftTurn) -> Proposal:
        """Drafts behind the anchors."""
        ...

    def observe(self, seen: Seen) -> None:
        """Takes what the target computed; what is not kept must leave no trace (its slot becomes 0)."""
        ...
