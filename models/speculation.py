"""What a runner asks of a drafter."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from corymb.cache.config import CacheConfig
from corymb.kernels.allotting import Allot
from corymb.kernels.attention import AttentionSpec, GraphAttention, KVLayer, RaggedLayout
from corymb.kernels.block_attention import BlockAttention
from corymb.kernels.packing import Packed, Windows
from corymb.kernels.sampling import Choice
from corymb.kernels.settling import Settle
from corymb.kernels.standing import Stand
from corymb.models.cuda_device import Device
from corymb.models.features import Capture
from corymb.models.load import LoadOptions
from corymb.models.logprobs import Scores
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
    farthest: int  # no row's anchor and drafts lie at this position or behind it
    rows: Tensor  # the same, int64 on the device
    most: Int32  # [R], on the host: drafts of each that may be verified, and have slots
    limits: Tensor  # the same, int32 on the device; on a GPU, the only ones that count
    anchors: Tensor  # int64 [R]
    lengths: Tensor  # int32 [R], tokens whose keys are written
    table: Tensor  # int32 [num_rows, context_length], the page table
    full_to_sliding: Tensor | None
    temperature: Tensor  # float32 [R]; 0: drafts are the likeliest tokens
    random: Tensor  # int64, the indices of rows whose temperature is above 0
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
    # bool [T], False for drafts that were not accepted; None: all stay. On a GPU always None: slots of what does not
    # stay are 0 already.
    keep: Tensor | None
    located: bool = False  # the device alone knows where rows are: the layout's arrays of the host mean nothing
    drafted: bool = False  # the drafter drafted for the step; on a GPU alone


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

    def make_for_gpu(self, setting: Setting, tools: "Tools") -> "DeviceSpeculator":
        """The same for a GPU's runner."""
        ...


@dataclass(frozen=True, slots=True)
class Drafting:
    """How a server speculates, and how its model was loaded."""

    speculation: Speculation
    load: LoadOptions


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


class MakeAttention(Protocol):
    """Makes back ends of a GPU."""

    def __call__(self, specs: Sequence[AttentionSpec], /) -> GraphAttention:
        """One for layers of these specs."""
        ...


@dataclass(frozen=True, slots=True)
class Tools:
    """What speculation on a GPU is made with."""

    device: Device
    attention: MakeAttention
    blocks: BlockAttention
    stand: Stand
    allot: Allot
    settle: Settle
    row_tiers: Sequence[int]  # numbers of rows to capture drafting for


@dataclass(frozen=True, slots=True)
class Verified:
    """A forward of the target over windows; holds until its next."""

    packed: Packed
    layout: RaggedLayout  # of `packed`: the host does not know it, and its own arrays mean nothing
    kept_slots: Tensor  # int64 [T], memory for the slots of tokens that stay; 0 for the others
    choice: Choice  # the likeliest token behind each, [T]
    features: Tensor | None  # see Seen


class DeviceTarget(Protocol):
    """The model that a GPU's drafter drafts for. Queues; never waits."""

    rows: Rows
    sampler: Sampler
    place: Place

    def verify(self, windows: Windows, num_tokens: int) -> Verified:
        """Computes windows of `num_tokens` or fewer."""
        ...

    def logits(self, index: Tensor) -> Tensor:
        """Float32 [N, V], to be changed at will, behind tokens [N] of what was verified last."""
        ...

    def observe(self, verified: Verified, *, drafted: bool) -> None:
        """Tells the drafter of what stays of that; see Seen."""
        ...


@dataclass(frozen=True, slots=True)
class DeviceOutputs:
    """What a step gave, on the device."""

    table: Tensor  # see `settling.tabulate`
    num_drafts: int
    is_confident: bool
    scores: Scores | None  # of all places of the rows that want any


class Block(Protocol):
    """A queued step whose rows do not know yet what they say."""

    @property
    def token_ids(self) -> Tensor | None:
        """Drafts int64 [R, num_drafts]; None where nothing was drafted."""
        ...

    @property
    def windows(self) -> Tensor:
        """Int32 [R], drafts that may be accepted."""
        ...

    def settle(self, masks: Masks | None) -> DeviceOutputs:
        """Queues what leaves each row as far as it came: see Speculator.run. `masks`: of the plan's constrained rows.
        Called once, before another step is drafted."""
        ...


class DeviceSpeculator(Protocol):
    """What a GPU's runner that speculates is given."""

    @property
    def drafter(self) -> "Drafter":
        """Sees every step, also those that it did not draft for."""
        ...

    def begin(self, target: DeviceTarget) -> None:
        """Captures what can be. Called once, before anything else."""
        ...

    def draft(self, plan: StepPlan, target: DeviceTarget, drafted: Callable[[], None]) -> Block:
        """Queues the drafts of a plan with windows, calls `drafted`, and queues their verification."""
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
