"""A smaller model drafts on a GPU, behind rows whose lengths the device alone knows."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from corymb.kernels.attention import GraphAttention, KVLayer, RaggedLayout
from corymb.models.features import Capture
from corymb.models.model import Batch, Model
from corymb.models.placement import Place
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
        self._place = Place(kv[0].keys.device)
        # Layers with a window find their slots through a map, and here they lie where the others do.
        self._same_slots = torch.arange(len(kv[0].keys), dtype=torch.int32, device=kv[0].keys.device)
        self._has_read = False  # the step that it drafted for last

    def capture(self, num_tokens: int) -> Capture | None:
        """Nothing."""

    def open(self, opened: Opened) -> None:
        """Nothing is kept by row."""

    def propose(self, turn: DraftTurn) -> Proposal:
        """See Drafter."""
        counts = np.minimum(turn.most, self.num_drafts).astype(np.int32)
        logits = torch.zeros(len(counts), self.num_drafts, self._model.vocab_size, device=turn.table.device)
        drafts = turn.anchors.new_zeros(len(counts), self.num_drafts)
        draw, last, most = Draw(turn, None, logits.shape[2]), turn.anchors, int(counts.max())
        for place in range(most + 1):
            going = np.flatnonzero(counts >= place)
            at = self._place(going)
            layout = self._stand(turn, going, at, place)
            self._attention.plan_graph(layout)
            self._attention.plan_captured()
            hidden = self._forward(last[at], layout, wanted=None if place < most else 0)
            if place < most:
                logits[at, place] = self._model.logits(hidden)
                last = draw(logits[:, place], place)
                drafts[:, place] = last
        self._has_read = True
        return Proposal(drafts, counts=self._place(counts), logits=logits if draw.any_random else None)

    def observe(self, seen: Seen) -> None:
        """See Drafter."""
        if self._has_read:
            self._has_read = False
            return
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

    def _stand(self, turn: DraftTurn, going: np.ndarray, at: Tensor, place: int) -> RaggedLayout:
        """One token of each row at `going`, `place` tokens behind its anchor."""
        rows, starts = turn.rows[at], turn.lengths[at] + place
        ones: Int32 = np.ones(len(going), np.int32)
        slots = turn.table[rows, starts.long()].long()
        return RaggedLayout(
            rows=rows.int(),
            widths=self._place(ones),
            starts=starts,
            offsets=torch.arange(len(going) + 1, dtype=torch.int32, device=rows.device),
            positions=starts.long(),
            slots=slots,
            sliding_slots=slots,
            table=turn.table,
            full_to_sliding=self._same_slots,
            host_rows=turn.host_rows[going],
            host_widths=ones,
            host_starts=np.full(len(going), turn.farthest, np.int32),
        )
