"""DSPARK and DFLASH: one forward fills a block of slots behind the anchor, from what the target thought on the way."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from corymb.kernels.attention import KVLayer
from corymb.kernels.block_attention import Contexts
from corymb.models.features import Capture
from corymb.models.model import SharingModel
from corymb.models.speculation import DraftTurn, Proposal, Seen
from corymb.scheduler.plan import Opened
from corymb.speculative.backbone import Backbone, Blocks
from corymb.speculative.draft_config import DraftConfig
from corymb.speculative.draft_heads import DraftHeads


@dataclass(frozen=True, slots=True)
class DraftModel:
    """A loaded draft."""

    config: DraftConfig
    backbone: Backbone
    heads: DraftHeads


class BlockDrafter:
    """See Drafter. Of a token it keeps what its layers make of the target's hidden states there, and nothing of its
    own: so it needs no prompt of its own, and whoever finds the token in the tree finds that too."""

    def __init__(
        self, model: DraftModel, target: SharingModel, kv: Sequence[KVLayer], *, num_drafts: int, dtype: torch.dtype
    ) -> None:
        """`kv`: one a layer, in the slots of the target; `dtype`: of the target's hidden states."""
        self.num_drafts = num_drafts
        self._model = model
        self._target = target
        self._kv = kv
        self._dtype = dtype

    def capture(self, num_tokens: int) -> Capture:
        """See Drafter."""
        config = self._model.config
        width = len(config.layers) * config.backbone.hidden_size
        return Capture(config.layers, torch.empty(num_tokens, width, dtype=self._dtype, device=self._kv[0].keys.device))

    def open(self, opened: Opened) -> None:
        """Nothing is kept by row."""

    def propose(self, turn: DraftTurn) -> Proposal:
        """See Drafter. Blocks are as long as they were in training, however many of their drafts are wanted: what a
        slot sees is part of what it learned."""
        config, num_rows = self._model.config, len(turn.host_rows)
        steps = torch.arange(config.num_slots, device=turn.lengths.device)
        contexts = Contexts(turn.table, turn.rows, turn.lengths)
        blocks = Blocks(turn.lengths[:, None].long() + steps, contexts)
        hidden = self._model.backbone.fill(self._empty(turn.anchors), blocks, self._kv)
        first = config.first_slot
        slots = hidden.view(num_rows, config.num_slots, -1)[:, first : first + self.num_drafts]
        return self._model.heads.draft(slots, turn)

    def observe(self, seen: Seen) -> None:
        """See Drafter."""
        assert seen.features is not None, "the target was not asked for its features"
        features, positions, slots = seen.features, seen.layout.positions, seen.layout.slots
        if seen.keep is not None:
            kept = seen.keep.nonzero()[:, 0]
            features, positions, slots = features[kept], positions[kept], slots[kept]
        if len(slots):
            self._model.backbone.inject(features, positions, slots, self._kv)

    def _empty(self, anchors: Tensor) -> Tensor:
        """The slots of blocks, [R × B, H]: the anchor, then masks."""
        config = self._model.config
        tokens = anchors.new_full((len(anchors), config.num_slots), config.mask_token_id)
        tokens[:, 0] = anchors
        return self._target.embed(tokens.flatten())
