"""States with decay, folded over a ragged batch in plain torch: what the delta rule and Mamba's scan have in common.

Whole chunks are computed at once and everything else token by token, each row by itself: so the state at a multiple of
GRID, and all tokens behind it up to the next, have the same bits wherever the steps before were cut and whatever rows
were beside it.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from corymb.kernels.attention import RaggedLayout
from corymb.kernels.chunks import cut
from corymb.kernels.recurrence import GRID


@dataclass(frozen=True, slots=True)
class Inputs:
    """What T tokens do to the states of H heads, float32.

    S ← exp(decay) × S, then S ← S + k ⊗ v, or with strengths S + k ⊗ strength × (v - kᵀS); the output is qᵀS.
    """

    queries: Tensor  # [T, H, K]
    keys: Tensor  # [T, H, K]
    values: Tensor  # [T, H, V]
    decays: Tensor  # [T, H], at most 0
    strengths: Tensor | None  # [T, H]

    def at(self, tokens: slice | Tensor) -> "Inputs":
        """Some of the tokens."""
        strengths = None if self.strengths is None else self.strengths[tokens]
        return Inputs(self.queries[tokens], self.keys[tokens], self.values[tokens], self.decays[tokens], strengths)


def fold(inputs: Inputs, states: Tensor, layout: RaggedLayout) -> Tensor:
    """Returns [T, H, V], and leaves the rows' new states in `states` [num_slots, H, K, V]."""
    assert layout.state_slots is not None, "a layer with a state needs its slots"
    if len(layout.host_widths) == layout.num_tokens and layout.marks is None:
        return _fold_singles(inputs, states, layout)
    out = torch.empty_like(inputs.values)
    short = np.flatnonzero(layout.host_widths < GRID)
    if len(short):
        _fold_short(inputs, states, layout, short, out)
    if len(short) == layout.num_rows:
        return out
    assert layout.moves_states, "only short rows leave their states alone"
    assert layout.marks is None, "only short rows come by marks"
    chunks, slots = cut(layout), layout.state_slots.tolist()
    for row, (first, last) in zip(chunks.rows, pairwise(chunks.firsts), strict=True):
        if layout.host_widths[row] >= GRID:
            piece = slice(int(first), int(last))
            _fold_piece(inputs.at(piece), states[slots[row]], out[piece])
    return out


def _fold_singles(inputs: Inputs, states: Tensor, layout: RaggedLayout) -> Tensor:
    """One token of each row."""
    slots = layout.state_slots
    assert slots is not None, "fold has looked"
    if len(slots) == 1 and layout.moves_states:
        slot = int(slots)
        return _step(inputs, states[slot : slot + 1])
    chosen = states.index_select(0, slots)
    out = _step(inputs, chosen)
    if layout.moves_states:
        states.index_copy_(0, slots, chosen)
    return out


def _fold_short(inputs: Inputs, states: Tensor, layout: RaggedLayout, rows: NDArray[np.int64], out: Tensor) -> None:
    """Rows without a whole chunk, token by token, each token of all rows at once."""
    assert layout.state_slots is not None, "fold has looked"
    rows = rows[np.argsort(-layout.host_widths[rows], kind="stable")]
    widths, firsts = layout.host_widths[rows], (np.cumsum(layout.host_widths) - layout.host_widths)[rows]
    slots = layout.state_slots[torch.from_numpy(rows).to(out.device)]
    chosen, marks = states.index_select(0, slots), list(marked(layout, rows))
    for nth in range(widths[0]):
        count = int(np.count_nonzero(widths > nth))
        tokens = torch.from_numpy(firsts[:count] + nth).to(out.device)
        out[tokens] = _step(inputs.at(tokens), chosen[:count])
        for place, width, slot in marks:
            if width == nth + 1:
                states[slot] = chosen[place]
    if layout.moves_states:
        states.index_copy_(0, slots, chosen)


def marked(layout: RaggedLayout, rows: NDArray[np.int64]) -> Iterator[tuple[int, int, int]]:
    """Of these rows those that come by a mark: place among them, tokens up to there, slot that the state goes to."""
    if layout.marks is None:
        return
    widths, slots = layout.marks.host_widths, layout.marks.slots.tolist()
    assert widths is not None, "here the host knows"
    for place in np.flatnonzero(widths[rows]).tolist():
        yield place, int(widths[rows[place]]), int(slots[rows[place]])


def _fold_piece(inputs: Inputs, state: Tensor, out: Tensor) -> None:
    if len(out) == GRID:
        out.copy_(_chunk(inputs, state))
        return
    for token in range(len(out)):
        this = slice(token, token + 1)
        out[this] = _step(inputs.at(this), state[None])


def _step(inputs: Inputs, states: Tensor) -> Tensor:
    """The next token of R rows, whose states [R, H, K, V] change in place; returns [R, H, V]."""
    states.mul_(inputs.decays.exp()[..., None, None])
    taken = inputs.values
    if inputs.strengths is not None:
        taken = (taken - _read(states, inputs.keys)) * inputs.strengths[..., None]
    # Product and sum apart: fused or not, by where a thread's share ends, they would differ in their last bit.
    states.add_(inputs.keys.unsqueeze(-1) * taken.unsqueeze(-2))
    return _read(states, inputs.queries)


def _read(states: Tensor, queries: Tensor) -> Tensor:
    """qᵀS of each head."""
    return torch.matmul(queries.unsqueeze(-2), states).squeeze(-2)


def _chunk(inputs: Inputs, state: Tensor) -> Tensor:
    """A whole chunk of one row, whose state [H, K, V] changes in place; returns [GRID, H, V].

    What later tokens see of earlier ones is a triangular matrix; with strengths, what each token takes in depends on
    those before it, which is a triangular system of equations.
    """
    queries, keys, values = (part.transpose(0, 1) for part in (inputs.queries, inputs.keys, inputs.values))
    # [H, GRID], decay from the beginning through each token; in float64, since differences of large sums follow.
    since = inputs.decays.t().double().cumsum(-1)
    later = torch.ones(GRID, GRID, dtype=torch.bool, device=state.device).triu(1)
    between = (since.unsqueeze(-1) - since.unsqueeze(-2)).float().masked_fill_(later, -torch.inf).exp_()
    grown = since.float().exp_().unsqueeze(-1)
    taken = values
    if inputs.strengths is not None:
        strengths = inputs.strengths.t().unsqueeze(-1)
        weighed = keys * strengths
        # The diagonal is taken for ones.
        system = torch.matmul(weighed, keys.transpose(-1, -2)).mul_(between)
        wanted = torch.cat((values * strengths, weighed * grown), dim=-1)
        solved = torch.linalg.solve_triangular(system, wanted, upper=False, unitriangular=True)
        own, reading = torch.split(solved, [values.shape[-1], keys.shape[-1]], dim=-1)
        taken = own - torch.matmul(reading, state)
    seen = torch.matmul(queries, keys.transpose(-1, -2)).mul_(between)
    out = torch.matmul(queries * grown, state).add_(torch.matmul(seen, taken))
    left = between[:, -1].unsqueeze(-1)
    state.mul_(grown[:, -1:]).add_(torch.matmul((keys * left).transpose(-1, -2), taken))
    return out.transpose(0, 1)
