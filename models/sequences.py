"""Ragged layouts and pools made by hand, without a scheduler or a tree."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from corymb.kernels.attention import Attention, AttentionSpec, KVLayer, RaggedLayout
from corymb.models.batch import lay_out
from corymb.models.features import Capture
from corymb.models.model import Batch, Model
from corymb.models.placement import Place
from corymb.models.pools import kv_layer
from corymb.models.states import StateSpec


class NoPrompts:
    """For models that never look at prompts."""

    def __getitem__(self, row: int) -> np.ndarray:
        raise KeyError(row)


@dataclass
class Sequences:
    """Rows with scattered slots in pools that hold NaN wherever nobody wrote. A row's states lie at its own number."""

    specs: Sequence[AttentionSpec]
    kv: list[KVLayer]
    table: Tensor
    full_to_sliding: Tensor
    lengths: np.ndarray  # computed tokens, by row
    states: list[Tensor]

    @staticmethod
    def empty(
        specs: Sequence[AttentionSpec],
        state_specs: Sequence[StateSpec] = (),
        *,
        num_rows: int,
        context_length: int,
        seed: int = 0,
    ) -> "Sequences":
        """Room for `num_rows` rows (row 0 is padding) of full length."""
        generator = torch.Generator().manual_seed(seed)
        num_slots = num_rows * context_length + 1
        scattered = torch.randperm(num_slots - 1, generator=generator).int() + 1
        table = scattered.view(num_rows, context_length).contiguous()
        sliding = torch.zeros(num_slots, dtype=torch.int32)
        sliding[1:] = torch.randperm(num_slots - 1, generator=generator).int() + 1
        kv = [kv_layer(spec, num_slots, lambda shape: torch.full(shape, torch.nan)) for spec in specs]
        states = [
            torch.full((num_rows, *spec.shape), torch.nan, dtype=spec.dtype or torch.float32) for spec in state_specs
        ]
        return Sequences(specs, kv, table, sliding, np.zeros(num_rows, np.int32), states)

    def layout(self, rows: Sequence[int], widths: Sequence[int]) -> RaggedLayout:
        """The next `widths` tokens of these rows."""
        host_rows, host_widths = np.array(rows, np.int32), np.array(widths, np.int32)
        made = lay_out(
            host_rows,
            host_widths,
            self.lengths[host_rows],
            table=self.table,
            full_to_sliding=self.full_to_sliding,
            place=Place(self.table.device),
        )
        return replace(made, state_slots=torch.from_numpy(host_rows).long())

    def step(
        self, model: Model, attention: Attention, tokens: dict[int, Sequence[int]], *, capture: Capture | None = None
    ) -> Tensor:
        """Computes the next tokens of some rows; returns the hidden states of all of them, in order."""
        layout = self.layout(list(tokens), [len(ids) for ids in tokens.values()])
        attention.plan(layout)
        token_ids = torch.tensor([token for ids in tokens.values() for token in ids])
        for row in tokens:
            if not self.lengths[row]:
                for states in self.states:
                    states[row] = 0
        batch = Batch(
            token_ids,
            layout.positions,
            layout,
            attention,
            self.kv,
            NoPrompts(),
            states=self.states,
            capture=capture,
        )
        hidden = model.forward(batch)
        for row, ids in tokens.items():
            self.lengths[row] += len(ids)
        return hidden
