"""STANDALONE: a smaller model of the same vocabulary drafts token by token."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from corymb.kernels.attention import Attention, AttentionSpec, KVLayer, RaggedLayout
from corymb.kernels.torch_attention import TorchAttention
from corymb.models.batch import lay_out
from corymb.models.config import DecoderConfig, ModelConfig
from corymb.models.features import Capture
from corymb.models.group import ALONE
from corymb.models.layers import attention_specs
from corymb.models.load import load_model
from corymb.models.model import Batch, Model
from corymb.models.placement import Place
from corymb.models.precision import Precision
from corymb.models.sequences import NoPrompts
from corymb.models.speculation import DraftTurn, Proposal, Seen, Setting, Tools
from corymb.scheduler.plan import Int32, Opened
from corymb.speculative.device_standalone import DeviceModelDrafter
from corymb.speculative.device_verification import DeviceVerification
from corymb.speculative.draft_draw import Draw
from corymb.speculative.standalone_config import read_standalone_config
from corymb.speculative.verification import Allotment, Verification


@dataclass(frozen=True, slots=True)
class StandaloneSpeculation:
    """A Speculation with a whole model."""

    folder: Path
    config: ModelConfig
    num_drafts: int
    allotment: Allotment | None = None

    @property
    def attention_specs(self) -> Sequence[AttentionSpec]:
        """See Speculation."""
        return [replace(spec, window=None) for spec in attention_specs(self._decoder)]

    def weights_bytes(self, precision: Precision) -> int:
        """See Speculation."""
        return precision.weights_bytes(self._decoder, "cpu")

    def make(self, setting: Setting) -> Verification:
        """See Speculation."""
        model = self._load(setting)
        drafter = ModelDrafter(model, TorchAttention(), setting.kv, num_drafts=self.num_drafts)
        return Verification(drafter, self.allotment)

    def make_for_gpu(self, setting: Setting, tools: Tools) -> DeviceVerification:
        """See Speculation."""
        model = self._load(setting)
        attention = tools.attention(model.attention_specs)
        drafter = DeviceModelDrafter(model, attention, setting.kv, num_drafts=self.num_drafts)
        return DeviceVerification(drafter, self.allotment, tools)

    def _load(self, setting: Setting) -> Model:
        """All of it on every rank: it is small, and a sum over the ranks would take longer than what it saves."""
        return load_model(self.folder, self.config, replace(setting.load, group=ALONE))

    @property
    def _decoder(self) -> DecoderConfig:
        assert self.config.decoder is not None, "checked by read_standalone_config"
        return self.config.decoder


def read_standalone(
    folder: Path, target: ModelConfig, *, context_length: int, num_drafts: int
) -> StandaloneSpeculation:
    """Reads a smaller model's folder, all but its weights. Raises ModelError."""
    config = read_standalone_config(folder, target, context_length=context_length)
    return StandaloneSpeculation(folder, config, num_drafts)


class ModelDrafter:
    """See Drafter. Keeps keys and values of all tokens in the slots of the target: those of drafts as it makes them,
    those of all others when the target has computed them."""

    def __init__(self, model: Model, attention: Attention, kv: Sequence[KVLayer], *, num_drafts: int) -> None:
        """`kv`: one a layer, in slots of the target's full pool."""
        self.num_drafts = num_drafts
        self._model = model
        self._attention = attention
        self._kv = kv
        # Layers with a window find their slots through a map, and here they lie where the others do.
        self._same_slots = torch.arange(len(kv[0].keys), dtype=torch.int32, device=kv[0].keys.device)
        self._written: dict[int, int] = {}  # by row: tokens from its anchor on that the step's drafting has written

    def capture(self, num_tokens: int) -> Capture | None:
        """Nothing."""

    def open(self, opened: Opened) -> None:
        """Nothing is kept by row."""

    def propose(self, turn: DraftTurn) -> Proposal:
        """See Drafter."""
        counts = np.minimum(turn.most, self.num_drafts).astype(np.int32)
        starts, table = turn.lengths.cpu().numpy(), turn.table
        self._written = dict(zip(turn.host_rows.tolist(), counts.tolist(), strict=True))
        logits = torch.zeros(len(counts), self.num_drafts, self._model.vocab_size, device=table.device)
        drafts = turn.anchors.new_zeros(len(counts), self.num_drafts)
        draw, last = Draw(turn, None, logits.shape[2]), turn.anchors
        for place in range(int(counts.max())):
            going = np.flatnonzero(counts > place)
            at = torch.from_numpy(going).to(table.device)
            layout = self._layout(turn.host_rows[going], np.ones(len(going), np.int32), starts[going] + place, table)
            logits[at, place] = self._model.logits(self._forward(last[at], layout))
            last = draw(logits[:, place], place)
            drafts[:, place] = last
        return Proposal(
            drafts,
            counts=torch.from_numpy(counts).to(table.device),
            logits=logits if draw.any_random else None,
        )

    def observe(self, seen: Seen) -> None:
        """See Drafter."""
        layout, kept = seen.layout, seen.layout.host_widths
        firsts = np.cumsum(kept) - kept
        if seen.keep is not None:
            kept = np.add.reduceat(seen.keep.cpu().numpy().astype(np.int32), firsts)
        written = np.array([self._written.get(row, 0) for row in layout.host_rows.tolist()], np.int32)
        self._written = {}
        widths = np.maximum(kept - written, 0).astype(np.int32)
        rows = np.flatnonzero(widths)
        if not len(rows):
            return
        index = np.concatenate([np.arange(widths[row]) + firsts[row] + written[row] for row in rows])
        token_ids = seen.token_ids[torch.from_numpy(index).to(seen.token_ids.device)]
        starts = (layout.host_starts + written)[rows]
        self._forward(token_ids, self._layout(layout.host_rows[rows], widths[rows], starts, layout.table), wanted=0)

    def _forward(self, token_ids: Tensor, layout: RaggedLayout, *, wanted: int | None = None) -> Tensor:
        """Hidden states of all tokens, or of the first `wanted`."""
        self._attention.plan(layout)
        index = None if wanted is None else torch.arange(wanted, device=token_ids.device)
        batch = Batch(token_ids, layout.positions, layout, self._attention, self._kv, NoPrompts(), wanted=index)
        return self._model.forward(batch)

    def _layout(self, rows: Int32, widths: Int32, starts: Int32, table: Tensor) -> RaggedLayout:
        place = Place(table.device)
        return lay_out(rows, widths, starts, table=table, full_to_sliding=self._same_slots, place=place)
