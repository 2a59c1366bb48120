"""Models made for tests: their outputs are known exactly, and a whole server runs on them at no cost.

All share a byte tokenizer: ids 0 to 255 are bytes, then the special tokens.
"""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from corymb.kernels.attention import AttentionSpec, KVLayer, RaggedLayout
from corymb.models.group import ALONE, Group
from corymb.models.model import Batch
from corymb.models.states import StateSpec
from corymb.models.tape import NO_TOKEN, Tapes

SPECIAL_TOKENS = ("<bos>", "<eos>", "<|im_start|>", "<|im_end|>", "<think>", "</think>", "<tool_call>", "</tool_call>")
VOCAB_SIZE = 256 + len(SPECIAL_TOKENS)

_FIRST_LETTER = ord("a")
_MODULUS = 65521
_FACTOR = 40503
_DECAY = 31


class NoAttention:
    """The attention back end of models that have none, or read their pools themselves."""

    def plan(self, layout: RaggedLayout) -> None:
        """Nothing depends on the layout."""

    def run(self, q: Tensor, k: Tensor, v: Tensor, spec: AttentionSpec, cache: KVLayer) -> Tensor:  # noqa: ARG002
        """Must not be called."""
        raise TypeError("this model has no attention layers")


class UniformModel:
    """All logits are 0: what a request samples shows its random numbers."""

    vocab_size = VOCAB_SIZE
    attention_specs: Sequence[AttentionSpec] = ()
    state_specs: Sequence[StateSpec] = ()
    record_specs: Sequence[StateSpec] = ()

    def forward(self, batch: Batch) -> Tensor:
        """Returns [T, 1]; nothing is computed."""
        return torch.zeros((len(batch.token_ids), 1), device=batch.token_ids.device)

    def logits(self, hidden: Tensor) -> Tensor:
        """Returns zeros [N, vocab_size]."""
        return torch.zeros((len(hidden), self.vocab_size), device=hidden.device)


class TapeModel:
    """Says what the prompt's tape says: logit 10 for the tape's token, 9 for the one after it in byte order."""

    vocab_size = VOCAB_SIZE
    attention_specs: Sequence[AttentionSpec] = ()
    state_specs: Sequence[StateSpec] = ()
    record_specs: Sequence[StateSpec] = ()

    def __init__(self, group: Group = ALONE) -> None:
        """Each rank of the group reads the tapes of a part of the positions."""
        self._group = group
        self._tapes = Tapes(SPECIAL_TOKENS)
        self._values = torch.tensor([[10.0, 9.0]])

    def forward(self, batch: Batch) -> Tensor:
        """Returns the best and second best token of every position, int64 [T, 2]; NO_TOKEN inside the prompt."""
        layout = batch.layout
        pairs = self._tapes.read(layout.host_rows, layout.host_starts, layout.host_widths, batch.prompts)
        own = torch.from_numpy(pairs).to(batch.token_ids.device)
        return self._group.all_reduce(own * is_own(self._group, batch.positions)[:, None])

    def logits(self, hidden: Tensor) -> Tensor:
        """Returns logits [N, vocab_size] of [N, 2] from `forward`."""
        logits = torch.zeros((len(hidden), NO_TOKEN + 1), device=hidden.device)
        logits.scatter_(1, hidden, self._values.to(hidden.device).expand(len(hidden), 2))
        return logits[:, : self.vocab_size]


class HashModel:
    """Its next letter is a hash of what it reads back through the page table and the pools.

    The slot of position i holds h(token) = token × 40503 mod 65521, its low byte as key and its high byte as value, so
    every dtype holds it exactly. The next token is 97 + ((Σ (i + 1) · h_i mod 65521) >> 5) mod 26. With a `window` a
    second layer stores the same in the sliding pool, and its last `window` positions are added to the sum. A
    `recurrent` one also adds its state, which each token turns from s into 31 s + h mod 65521.
    """

    vocab_size = VOCAB_SIZE

    def __init__(self, window: int | None = None, *, recurrent: bool = False, group: Group = ALONE) -> None:
        """Each rank of the group adds up a part of the positions."""
        self._group = group
        windows = (None,) if window is None else (None, window)
        self.attention_specs: Sequence[AttentionSpec] = [AttentionSpec(1, 1, 1, 1.0, window) for window in windows]
        self.state_specs: Sequence[StateSpec] = [StateSpec((1,), torch.int64)] if recurrent else []
        self.record_specs = self.state_specs  # what a token is stored as

    def forward(self, batch: Batch) -> Tensor:
        """Returns the next token of every position, int64 [T, 1]."""
        layout = batch.layout
        stored = batch.token_ids * _FACTOR % _MODULUS
        total = torch.zeros_like(batch.token_ids)
        for spec, layer in zip(self.attention_specs, batch.kv, strict=True):
            slots = layout.slots if spec.window is None else layout.sliding_slots
            assert slots is not None, "a window without a sliding pool"
            layer.keys[slots] = (stored & 255)[:, None, None].to(layer.keys.dtype)
            layer.values[slots] = (stored >> 8)[:, None, None].to(layer.values.dtype)
            total += _weighted_sums(layout, layer, spec.window, self._group)
        if self.state_specs:
            passed = batch.fold(0, (stored[:, None],), batch.states, _next_states)
            total += passed * is_own(self._group, batch.positions)
        total = self._group.all_reduce(total)
        return _FIRST_LETTER + ((total % _MODULUS) >> 5).remainder(26)[:, None]

    def logits(self, hidden: Tensor) -> Tensor:
        """Returns logits [N, vocab_size], 10 for the next token."""
        return torch.zeros((len(hidden), self.vocab_size), device=hidden.device).scatter_(1, hidden, 10.0)


def is_own(group: Group, positions: Tensor) -> Tensor:
    """Which positions a rank answers for: so a token depends on what every rank read."""
    return positions % group.size == group.rank


def _weighted_sums(layout: RaggedLayout, layer: KVLayer, window: int | None, group: Group) -> Tensor:
    """Σ (i + 1) · h_i mod 65521 over the rank's own positions i that each new token sees, int64 [T]; all rows in one
    gather."""
    ends = layout.host_starts.astype(np.int64) + layout.host_widths
    first_seen = np.maximum(layout.host_starts - (window or ends.max()) + 1, 0)
    # Row r's part of the flat arrays: [base[r], base[r] + ends[r] - first_seen[r])
    base = np.concatenate(([0], np.cumsum(ends - first_seen)))
    positions = np.arange(base[-1]) + np.repeat(first_seen - base[:-1], ends - first_seen)
    device = layout.table.device
    rows = torch.from_numpy(np.repeat(layout.host_rows.astype(np.int64), ends - first_seen)).to(device)
    places = torch.from_numpy(positions).to(device)
    slots = layout.table[rows, places]
    if window is not None:
        assert layout.full_to_sliding is not None, "a window without a sliding pool"
        slots = layout.full_to_sliding[slots]
    stored = layer.keys[slots].to(torch.int64) + (layer.values[slots].to(torch.int64) << 8)
    terms = (places + 1) * stored.view(-1) % _MODULUS * is_own(group, places)
    sums = torch.nn.functional.pad(terms.cumsum(dim=0), (1, 0))
    last = layout.positions + torch.from_numpy(np.repeat(base[:-1] - first_seen, layout.host_widths)).to(device)
    if window is None:
        first = torch.from_numpy(np.repeat(base[:-1], layout.host_widths)).to(device)
    else:
        seen = (layout.positions + 1).clamp_(max=window)
        first = last + 1 - seen
    return sums[last + 1] - sums[first]


def _next_states(parts: Sequence[Tensor], pools: Sequence[Tensor], layout: RaggedLayout) -> Tensor:
    """The state after each token [T]; the last of each row is left in its slot, where the layout moves states."""
    assert layout.state_slots is not None, "a state without a pool"
    stored, states = parts[0][:, 0], pools[0]
    widths = torch.from_numpy(layout.host_widths.astype(np.int64)).to(stored.device)
    last = widths.cumsum(0) - 1
    # Row by row, with j from 0: s_j = 31^j · (31 s + Σ_{i ≤ j} h_i / 31^i)
    first = torch.repeat_interleave(last + 1 - widths, widths)
    nth = torch.arange(len(stored), device=stored.device) - first
    sums = torch.nn.functional.pad((stored * _powers(pow(_DECAY, -1, _MODULUS), nth) % _MODULUS).cumsum(0), (1, 0))
    begun = states[layout.state_slots, 0].repeat_interleave(widths) * _DECAY
    passed = (begun + sums[1:] - sums[first]) % _MODULUS * _powers(_DECAY, nth) % _MODULUS
    if layout.moves_states:
        states[layout.state_slots, 0] = passed[last]
    if layout.marks is not None:
        rows = layout.marks.widths.nonzero()[:, 0]
        states[layout.marks.slots[rows], 0] = passed[(last + 1 - widths + layout.marks.widths - 1)[rows]]
    return passed


def _powers(base: int, exponents: Tensor) -> Tensor:
    """base^e mod 65521 for each exponent, int64."""
    most = int(exponents.max()) + 1
    table = torch.ones(most, dtype=torch.int64, device=exponents.device)
    for done in (1 << bit for bit in range(most.bit_length()) if 1 << bit < most):
        table[done : 2 * done] = table[: min(done, most - done)] * pow(base, done, _MODULUS) % _MODULUS
    return table[exponents]
