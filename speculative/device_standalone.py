"""A smaller model drafts on a GPU, behind rows whose lengths the device alone knows."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from corymb.kernels.attention import GraphAttention, KVLayer, RaggedLayout
from corymb.models.features import Capture
from corymb.models.model import Batch, Model
from corymb.models.sequences import NoPrompts
from corymb.models.speculation import DraftTurn, Proposal, Seen
from corymb.scheduler.plan import Int32, Opened
from corymb.speculative.draft_draw import Draw


class DeviceModelDrafter:
    """See standalone.ModelDrafter. It reads each last draft too, though nothing follows it: so whatever is accepted,
    all that is kept has been read, and a step that it drafted for needs no second look."""

    def __init__(self, model: Model, attention: GraphAttention, kv: Sequence[KVLayer], *, num_drafts: int) -> None:
        """`kv`: one a layer, in slots of the target's full pool."""
        self.num_drafts = num_drafts
        self._model = model
        self._attention = attention
        self._kv = kv
        # Layers with a window find their slots through a map, and here they lie where the others do.
        self._same_slots = torch.arange(len(kv[0].keys), dtype=torch.int32, device=kv[0].keys.device)

    def capture(self, num_tokens: int) -> Capture | None:
        """Nothing."""

    def open(self, opened: Opened) -> None:
        """Nothing is kept by row."""

    def propose(self, turn: DraftTurn) -> Proposal:
        """See Drafter. All rows go through all places; what a row may not draft has no slot, and is not looked at."""
        num_rows = len(turn.anchors)
        logits = torch.empty(num_rows, self.num_drafts, self._model.vocab_size, device=turn.table.device)
        drafts = turn.anchors.new_empty(num_rows, self.num_drafts)
        draw, last = Draw(turn, None, logits.shape[2]), turn.anchors
        for place in range(self.num_drafts + 1):
            layout = self._stand(turn, place)
            self._attention.plan_graph(layout)
            self._attention.plan_captured()
            hidden = self._forward(last, layout, wanted=None if place < self.num_drafts else 0)
            if place < self.num_drafts:
                logits[:, place] = self._model.logits(hidden)
                last = draw(logits[:, place], place)
                drafts[:, place] = last
        counts = turn.limits.clamp(max=self.num_drafts)
        return Proposal(drafts, counts=counts, logits=logits if draw.any_random else None)

    def observe(self, seen: Seen) -> None:
        """See Drafter."""
        if seen.drafted:
            return  # it has read all that
        layout = replace(seen.layout, sliding_slots=seen.layout.slots, full_to_sliding=self._same_slots)
        if seen.located:
            self._attention.plan_graph(layout)
            self._attention.plan_captured()
        else:
            self._attention.plan(layout)
        self._forward(seen.token_ids, layout, wanted=0)

    def _forward(self, token_ids: Tensor, layout: RaggedLayout, *, wanted: int | None) -> Tensor:
        """Hidden states of all tokens, or of the first `wanted`."""
        index = None if wanted is None else torch.arange(wanted, device=token_ids.device)
        batch = Batch(token_ids, layout.positions, layout, self._attention, self._kv, NoPrompts(), wanted=index)
        return self._model.forward(batch)

    def _stand(self, turn: DraftTurn, place: int) -> RaggedLayout:
        """One token of each row, `place` tokens behind its anchor; of rows that draft less, the padding's."""
        num_rows = len(turn.anchors)
        going = turn.limits >= place
        rows, starts = torch.where(going, turn.rows, 0), torch.where(going, turn.lengths + place, 0)
        slots = torch.where(going, turn.table[rows, starts.long()], 0).long()
        nobody: Int32 = np.zeros(num_rows, np.int32)
        return RaggedLayout(
            rows=rows.int(),
            widths=torch.ones_like(starts),
            starts=starts,
            offsets=torch.arange(num_rows + 1, dtype=torch.int32, device=rows.device),
            positions=starts.long(),
            slots=slots,
            sliding_slots=slots,
            table=turn.table,
            full_to_sliding=self._same_slots,
            host_rows=nobody,
            host_widths=nobody + 1,
            host_starts=nobody,
        )
