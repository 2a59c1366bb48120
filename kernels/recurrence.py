"""Layers that carry a state from token to token instead of looking back: the contract over the ragged batch.

The state of row r lies in slot layout.state_slots[r] of a layer's pool: as the row's last step left it, zero in a new
sequence. An operation takes the row's new tokens through it and leaves the state after the last of them in the slot.
Slot 0 belongs to padding rows: what is left there means nothing, and what they give is read by nobody.
Of a layout whose `moves_states` is False the rows are shorter than GRID, and all states stay as they were: so drafts
are verified, and those that count are taken through the state by another call, with the same inputs: the same bits.
Rows of a layout with `marks` are shorter than GRID too: after marks.widths[r] tokens the state of row r is also left in
slot marks.slots[r].

Long rows are computed in chunks that end at multiples of GRID of the sequence's positions, wherever the row begins.
"""

from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from corymb.kernels.attention import RaggedLayout

GRID = 64
LENGTH_EPS = 1e-6  # added to the squared length of a query or key before it is divided by that


@dataclass(frozen=True, slots=True)
class Convolution:
    """A causal convolution over the last `width` tokens, each channel by itself."""

    weight: Tensor  # float32 [width, channels], the oldest token's first
    bias: Tensor | None  # float32 [channels]
    silu: bool  # SiLU follows


@dataclass(frozen=True, slots=True)
class DeltaRule:
    """The gated delta rule: a state forgets, then takes in by how much a key's value differs from what it holds."""

    num_key_heads: int  # each serves num_value_heads ÷ num_key_heads value heads, neighbours
    num_value_heads: int
    key_dim: int
    value_dim: int
    rate: Tensor  # float32 [num_value_heads], below zero
    bias: Tensor  # float32 [num_value_heads]


@dataclass(frozen=True, slots=True)
class StateSpace:
    """The scan of Mamba 2: a state forgets, then takes in a token's input along its key."""

    num_heads: int
    head_dim: int
    num_groups: int  # of keys and queries; each serves num_heads ÷ num_groups heads, neighbours
    state_size: int
    rate: Tensor  # float32 [num_heads], below zero
    bias: Tensor  # float32 [num_heads]
    skip: Tensor  # float32 [num_heads]
    least_step: float
    most_step: float


@dataclass(frozen=True, slots=True)
class GatedNorm:
    """An RMS norm over the last dimension and a gate: before the norm or after it."""

    weight: Tensor  # float32 [heads, head_dim], or [1, head_dim] for all heads
    eps: float
    gate_first: bool


class Recurrence(Protocol):
    """A back end. Sums run in float32 whatever the inputs' type; outputs have the inputs' type."""

    def convolve(self, x: Tensor, convolution: Convolution, windows: Tensor, layout: RaggedLayout) -> Tensor:
        """Returns [T, channels] of x [T, channels]. `windows` [num_slots, width - 1, channels] keeps each row's last
        inputs, the oldest first."""
        ...

    def apply_delta_rule(
        self, qkv: Tensor, strengths: Tensor, decays: Tensor, rule: DeltaRule, states: Tensor, layout: RaggedLayout
    ) -> Tensor:
        """Returns [T, num_value_heads, value_dim] of qkv [T, num_key_heads × 2 key_dim + num_value_heads × value_dim]
        (all queries, all keys, all values) and [T, num_value_heads] of strengths and decays.

        With q and k of length 1, and q ÷ √key_dim: S ← exp(rate × softplus(decay + bias)) × S, then
        S ← S + k ⊗ sigmoid(strength) × (v - kᵀS); the output is qᵀS. S is float32 [key_dim, value_dim] a head, in
        `states` [num_slots, num_value_heads, key_dim, value_dim].
        """
        ...

    def scan(self, xbc: Tensor, steps: Tensor, space: StateSpace, states: Tensor, layout: RaggedLayout) -> Tensor:
        """Returns [T, num_heads, head_dim] of xbc [T, num_heads × head_dim + num_groups × 2 state_size] (inputs x, then
        keys b, then queries c) and steps [T, num_heads].

        With t = softplus(step + bias), kept between least_step and most_step: S ← exp(rate × t) × S + b ⊗ t × x; the
        output is cᵀS + skip × x. S is float32 [state_size, head_dim] a head, in `states`
        [num_slots, num_heads, state_size, head_dim].
        """
        ...

    def gate(self, x: Tensor, gate: Tensor, norm: GatedNorm | None) -> Tensor:
        """Returns x × silu(gate) of x and gate [T, heads, head_dim], with the norm before or after, if there is one."""
        ...
