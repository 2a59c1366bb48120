"""What a runner asks of a drafter."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from corymb.cache.config import CacheConfig
from corymb.kernels.attention import AttentionSpec, KVLayer, RaggedLayout
from corymb.models.features import Capture
from corymb.models.load import LoadOptions
from corymb.models.model import Model
from corymb.models.placement import Place
from corymb.models.precision import Precision
from corymb.models.rows import Rows
from corymb.models.sampler import Sampler
from corymb.scheduler.plan import Drafts, Int32, Masks, Opened, Sampled, StepPlan


@dataclass(frozen=True, slots=True)
class DraftTurn:
    """R rows that draft. A row's anchor is the token it sampled last: its keys are not written, and it stands at
    position lengths[r]. The page table has slots for the anchor and `most` drafts behind it."""

    host_rows: Int32  # [R], request rows
    rows: Tensor  # the same, int64 on the device
    most: Int32  # [R], on the host: drafts of each that may be verified, and have slots
    anchors: Tensor  # int64 [R]
    lengths: Tensor  # int32 [R], tokens whose keys are written
    table: Tensor  # int32 [num_rows, context_length], the page table
    full_to_sliding: Tensor | None
    temperature: Tensor  # float32 [R]; 0: drafts are the likeliest tokens
    # int32 [R, num_drafts, 2], see kernels.noise. For rows with a seed what the target itself would draw each place
    # with, so that drafts meet it as often as can be; for others noise that no other step has.
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
class Computed:
    """A forward of the target."""

    hidden: Tensor  # [T, hidden_size], before the head
    layout: RaggedLayout
    token_ids: Tensor  # int64 [T]
    features: Tensor | None  # see Seen


@dataclass(frozen=True, slots=True)
class Seen:
    """A step that the target has computed."""

    layout: RaggedLayout
    token_ids: Tensor  # int64 [T]
    features: Tensor | None  # [T, …], what the drafter's `capture` took
    keep: Tensor | None  # bool [T], False for drafts that were not accepted; None: all stay


class Target(Protocol):
    """The model that a drafter drafts for, as an execution has it."""

    rows: Rows
    sampler: Sampler
    place: Place

    def compute(self, plan: StepPlan) -> Computed:
        """Computes a plan that says where its rows are."""
        ...

    def logits(self, hidden: Tensor) -> Tensor:
        """Float32 [N, V] of hidden states [N, hidden_size]."""
        ...


@dataclass(frozen=True, slots=True)
class Setting:
    """What a drafter must know of the server it drafts for."""

    model: Model
    cache: CacheConfig
    kv: Sequence[KVLayer]  # of `Speculation.attention_specs`, one each
    load: LoadOptions  # of the model
    place: Place


class Speculation(Protocol):
    """How a server speculates."""

    @property
    def num_drafts(self) -> int:
        """Most drafts of a row and step."""
        ...

    @property
    def attention_specs(self) -> Sequence[AttentionSpec]:
        """What it keeps of every token, beside the model: in slots of the full pool, so none of them has a window."""
        ...

    def weights_bytes(self, precision: Precision) -> int:
        """What its loaded weights take."""
        ...

    def make(self, setting: Setting) -> "Speculator":
        """Loads what drafts. Raises ModelError where it does not fit the model."""
        ...


class Readable(Protocol):
    """What a step gave, on the device."""

    def read(self) -> Sampled:
        """Waits for the device and puts it on the host."""
        ...


class AskMasks(Protocol):
    """Where a step gets the masks of its constrained rows."""

    def offer(self, drafts: Drafts) -> None:
        """Says what they are about to verify."""
        ...

    def __call__(self) -> Masks:
        """Waits for the masks."""
        ...


class Speculator(Protocol):
    """What an execution that speculates is given."""

    @property
    def drafter(self) -> "Drafter":
        """Sees every step, also those that it did not draft for."""
        ...

    def run(self, plan: StepPlan, ask: AskMasks, target: Target) -> Readable:
        """Drafts for the rows of a located plan, verifies, and leaves each row as far as it came: lengths, last sampled
        tokens, what the sampler counts, what the drafter keeps. Tells what its constrained rows are about to
        verify, and waits for their masks when nothing else is left to compute."""
        ...


class Drafter(Protocol):
    """Proposes tokens. What it keeps of a token lies in the slot of the target (`Seen.layout.slots`), so that a prefix
    hit serves it as it serves the target: it sees each token once, whoever finds it in the tree later."""

    num_drafts: int  # drafts a row and step

    def capture(self, num_tokens: int) -> Capture | None:
        """Room for what it wants to see of the target's layers in a step of so many tokens; None for nothing."""
        ...

    def open(self, opened: Opened) -> None:
        """A request took a row."""
        ...

    def propose(self, turn: DraftTurn) -> Proposal:
        """Drafts behind the anchors."""
        ...

    def observe(self, seen: Seen) -> None:
        """Takes what the target computed; what is not kept must leave no trace (its slot becomes 0)."""
        ...
