"""Writes down what a drafter proposed, and behind what."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch

from corymb.kernels.attention import AttentionSpec, KVLayer
from corymb.models.features import Capture
from corymb.models.precision import Precision
from corymb.models.speculation import Drafter, DraftTurn, Proposal, Seen, Setting, Speculation
from corymb.scheduler.plan import Opened
from corymb.speculative.verification import Allotment, Verification


@dataclass(frozen=True)
class Record:
    said: tuple[int, ...]  # of the request, up to the anchor
    drafts: tuple[int, ...]
    logits: torch.Tensor | None
    confidence: torch.Tensor | None


class Recorder:
    """A drafter in front of another. Keeps what every row said, and sees to it that drafts that were not accepted leave
    no trace in the pools."""

    def __init__(self, drafter: Drafter, records: list[Record], num_rows: int, kv: Sequence[KVLayer]) -> None:
        self._kv = kv
        self.num_drafts = drafter.num_drafts
        self._drafter = drafter
        self._records = records
        self._said: list[list[int]] = [[] for _ in range(num_rows)]

    def capture(self, num_tokens: int) -> Capture | None:
        return self._drafter.capture(num_tokens)

    def open(self, opened: Opened) -> None:
        self._said[opened.row] = [*opened.prompt_ids.tolist(), *opened.output_ids.tolist()]
        self._drafter.open(opened)

    def propose(self, turn: DraftTurn) -> Proposal:
        proposal = self._drafter.propose(turn)
        for index, row in enumerate(turn.host_rows.tolist()):
            said = (*self._said[row][: int(turn.lengths[index])], int(turn.anchors[index]))
            count = self.num_drafts if proposal.counts is None else int(proposal.counts[index])
            self._records.append(
                Record(
                    said,
                    tuple(proposal.token_ids[index, :count].tolist()),
                    None if proposal.logits is None else proposal.logits[index],
                    None if proposal.confidence is None else proposal.confidence[index],
                )
            )
        return proposal

    def observe(self, seen: Seen) -> None:
        layout, first = seen.layout, 0
        rows = zip(layout.host_rows.tolist(), layout.host_starts.tolist(), layout.host_widths.tolist(), strict=True)
        for row, start, width in rows:
            kept = seen.token_ids[first : first + width]
            if seen.keep is not None:
                kept = kept[seen.keep[first : first + width]]
            end = start + len(kept)
            self._said[row] = [*self._said[row][:start], *kept.tolist(), *self._said[row][end:]]
            first += width
        left_out = seen.layout.slots[:0] if seen.keep is None else seen.layout.slots[~seen.keep]
        before = [layer.keys[left_out].clone() for layer in self._kv]
        self._drafter.observe(seen)
        for layer, keys in zip(self._kv, before, strict=True):
            torch.testing.assert_close(layer.keys[left_out], keys, atol=0, rtol=0, equal_nan=True)


@dataclass
class Recorded:
    """A Speculation whose drafter is recorded."""

    speculation: Speculation
    allotment: Allotment | None = None
    records: list[Record] = field(default_factory=list)

    @property
    def num_drafts(self) -> int:
        return self.speculation.num_drafts

    @property
    def attention_specs(self) -> Sequence[AttentionSpec]:
        return self.speculation.attention_specs

    def weights_bytes(self, precision: Precision) -> int:
        return self.speculation.weights_bytes(precision)

    def make(self, setting: Setting) -> Verification:
        # What nobody wrote must not be read.
        for layer in setting.kv:
            layer.keys.fill_(np.nan)
            layer.values.fill_(np.nan)
        drafter = self.speculation.make(setting).drafter
        return Verification(Recorder(drafter, self.records, setting.cache.num_rows, setting.kv), self.allotment)
