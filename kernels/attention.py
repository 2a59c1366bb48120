"""The attention contract over a ragged batch: `plan(layout)` once a step, `run(q, k, v, ...)` once a layer.

Row r of R has widths[r] new tokens at positions starts[r] … starts[r] + widths[r] - 1 of its sequence; the T = Σ widths
new tokens of all rows lie one after another. Token t of row r attends to positions 0 … its own, or to the last `window`
of those. Keys and values live in a paged pool and are found through the page table:
slot = table[rows[r], position], and for a sliding-window layer full_to_sliding[slot].
"""

from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray
from torch import Tensor


@dataclass(frozen=True, slots=True)
class StateMarks:
    """Where the rows of a step come by states that are wanted."""

    widths: Tensor  # int32 [R], tokens of the row after which its state is wanted; 0: nowhere
    slots: Tensor  # int64 [R], where it goes to
    host_widths: NDArray[np.int32] | None = None  # None where the host does not know


@dataclass(frozen=True, slots=True)
class RaggedLayout:
    """Where the rows of one step stand. Tensors are on the device of the pools; `host_*` are the same on the host."""

    rows: Tensor  # int32 [R], rows of `table`
    widths: Tensor  # int32 [R]
    starts: Tensor  # int32 [R]
    offsets: Tensor  # int32 [R + 1], prefix sums of widths
    positions: Tensor  # int64 [T]
    slots: Tensor  # int64 [T], full-pool slot of each new token
    sliding_slots: Tensor | None  # int64 [T], sliding-pool slot of each new token; None without sliding layers
    table: Tensor  # int32 [num_rows, context_length], full-pool slots
    full_to_sliding: Tensor | None  # int32 [num_full_slots]
    host_rows: NDArray[np.int32]
    host_widths: NDArray[np.int32]
    host_starts: NDArray[np.int32]
    state_slots: Tensor | None = None  # int64 [R], each row's slot in the pools of recurrent states; None without any
    moves_states: bool = True  # False: states stay as they were before the step, since its tokens may be taken back
    marks: StateMarks | None = None

    @property
    def num_rows(self) -> int:
        """R."""
        return len(self.host_rows)

    @property
    def num_tokens(self) -> int:
        """T, padding excluded."""
        return int(self.host_widths.sum())


@dataclass(frozen=True, slots=True)
class IndexSpec:
    """What chooses the keys that a layer attends to (see `LatentAttention.choose`)."""

    num_heads: int
    head_dim: int
    top_k: int


@dataclass(frozen=True, slots=True)
class AttentionSpec:
    """What a layer's attention is; equal specs may share a plan."""

    num_heads: int
    num_kv_heads: int
    head_dim: int
    scale: float
    window: int | None = None  # tokens, the current one included; None attends to all
    soft_cap: float | None = None  # logits become cap × tanh(logits ÷ cap)
    # Attention to latents (MLA): one key head, whose first `latent_dim` numbers are the value; nothing else is stored.
    latent_dim: int | None = None
    index: IndexSpec | None = None  # the layer chooses its keys by an index of its own
    # float32 [num_heads]: one more logit of each head, of a key whose value is zero. Nobody plans by its numbers; a
    # spec that only describes a layer holds them on torch's meta device.
    sinks: Tensor | None = field(default=None, compare=False, repr=False)

    @property
    def value_dim(self) -> int:
        """Numbers of a value."""
        return self.head_dim if self.latent_dim is None else self.latent_dim


@dataclass(frozen=True, slots=True)
class KVLayer:
    """One layer's part of a pool; page p of size s holds slots p·s … p·s + s - 1, so a slot indexes the first axis."""

    keys: Tensor  # [num_slots, num_kv_heads, head_dim]
    values: Tensor  # [num_slots, num_kv_heads, value_dim]; of latents, a view of the keys
    key_scale: float = 1.0  # an 8-bit pool holds keys ÷ key_scale
    value_scale: float = 1.0
    index_keys: Tensor | None = None  # [num_slots, index.head_dim], in the same slots


@dataclass(frozen=True, slots=True)
class HeadNorms:
    """RMS norms over single heads; weights float32 [head_dim]."""

    query: Tensor
    key: Tensor
    eps: float


@dataclass(frozen=True, slots=True)
class HeadChanges:
    """What a layer does to query and key heads before attention: norms, then turns (see `Operations.rope`)."""

    turns: Tensor | None = None  # float32 [T, head_dim]
    norms: HeadNorms | None = None


class Attention(Protocol):
    """A back end. One instance serves all layers of a model."""

    def plan(self, layout: RaggedLayout) -> None:
        """Prepares for one step's layout; whatever depends only on lengths is done here, once for all layers."""
        ...

    def run(self, q: Tensor, k: Tensor, v: Tensor, spec: AttentionSpec, cache: KVLayer) -> Tensor:
        """Stores k and v [T, num_kv_heads, head_dim] at the new tokens' slots, then attends with q
        [T, num_heads, head_dim]; returns [T, num_heads, head_dim]. A spec with a window uses the sliding pool."""
        ...


@dataclass(frozen=True, slots=True)
class Chosen:
    """The keys that each new token attends to."""

    slots: Tensor  # int32 [T, top_k] of the full pool, in the order of positions; meaningless from `counts` on
    counts: Tensor  # int32 [T]


@runtime_checkable
class LatentAttention(Attention, Protocol):
    """A back end that attends to latents."""

    def run_latent(
        self, q: Tensor, latents: Tensor, spec: AttentionSpec, cache: KVLayer, chosen: Chosen | None
    ) -> Tensor:
        """Stores latents [T, head_dim] at the new tokens' slots, then attends with q [T, num_heads, head_dim]: to the
        chosen keys, where some were chosen. Returns [T, num_heads, latent_dim]."""
        ...

    def choose(self, q: Tensor, weights: Tensor, keys: Tensor, spec: AttentionSpec, cache: KVLayer) -> Chosen:
        """Stores index keys [T, dim] at the new tokens' slots and gives each token the keys, its own and earlier ones,
        that score best; the earlier ones among equals, whatever their score.

        The score of key s is Σ weights[t, h] × relu(q[t, h] · keys[s]) over the heads of q [T, heads, dim]; weights are
        float32 [T, heads].
        """
        ...


@runtime_checkable
class JoinedAttention(Attention, Protocol):
    """A back end that changes the heads and stores keys and values in one pass."""

    def run_joined(self, heads: Tensor, changes: HeadChanges, spec: AttentionSpec, cache: KVLayer) -> Tensor:
        """Does what `run` does with `heads` [T, num_heads + 2 num_kv_heads, head_dim], queries, keys and values as one
        product gives them, after `changes`. Overwrites heads."""
        ...


@runtime_checkable
class GraphAttention(JoinedAttention, Protocol):
    """A back end whose `run_joined` may be captured in a CUDA graph and replayed after other plans."""

    def plan_graph(self, layout: RaggedLayout) -> None:
        """Plans, outside the graph, a step that a captured graph computes. The layout's tensors are those it was
        captured with, and longer than the step: further rows have one token at slot 0 of row 0. Rows may be of any
        width, as long as no back end or caller says less."""
        ...

    def plan_captured(self) -> None:
        """Queues what the device itself plans of the layout last given to `plan_graph`; the graph begins with it."""
        ...


def slots_of(layout: RaggedLayout, spec: AttentionSpec) -> Tensor:
    """Where a layer's new keys and values go."""
    slots = layout.slots if spec.window is None else layout.sliding_slots
    assert slots is not None, "a layer with a window needs the sliding pool's slots"
    return slots
