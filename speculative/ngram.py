"""Drafts from what the request has said before: what followed the last words the last time they came."""

from dataclasses import dataclass

import numpy as np
import torch

from corymb.kernels.attention import AttentionSpec
from corymb.models.features import Capture
from corymb.models.precision import Precision
from corymb.models.speculation import DraftTurn, Proposal, Seen, Setting, Tools
from corymb.scheduler.plan import Int32, Opened
from corymb.speculative.device_ngram import DeviceNgramDrafter
from corymb.speculative.device_verification import DeviceVerification
from corymb.speculative.verification import Allotment, Verification


@dataclass(frozen=True, slots=True)
class NgramSpeculation:
    """A Speculation without a model."""

    num_drafts: int
    least: int = 1
    longest: int = 12
    allotment: Allotment | None = None
    attention_specs: tuple[AttentionSpec, ...] = ()

    def weights_bytes(self, _: Precision) -> int:
        """None."""
        return 0

    def make(self, setting: Setting) -> Verification:
        """See Speculation."""
        cache = setting.cache
        drafter = NgramDrafter(
            self.num_drafts, cache.num_rows, cache.context_length, least=self.least, longest=self.longest
        )
        return Verification(drafter, self.allotment)

    def make_for_gpu(self, setting: Setting, tools: Tools) -> DeviceVerification:
        """See Speculation."""
        cache = setting.cache
        said = setting.place.zeros((cache.num_rows, cache.context_length), torch.int32)
        drafter = DeviceNgramDrafter(self.num_drafts, said, least=self.least, longest=self.longest)
        return DeviceVerification(drafter, self.allotment, tools, captures=False)


class NgramDrafter:
    """Looks up the longest ending of a row, of `least` to `longest` tokens, that came before, the latest time it did
    (prompt lookup decoding, Saxena 2023). Keeps every row's tokens on the host."""

    def __init__(
        self, num_drafts: int, num_rows: int, context_length: int, *, least: int = 1, longest: int = 12
    ) -> None:
        self.num_drafts = num_drafts
        self._least = least
        self._longest = longest
        self._said = np.zeros((num_rows, context_length), np.int32)

    def capture(self, num_tokens: int) -> Capture | None:
        """Nothing."""

    def open(self, opened: Opened) -> None:
        """A request took a row."""
        known = np.concatenate((opened.prompt_ids, opened.output_ids))
        self._said[opened.row, : len(known)] = known

    def propose(self, turn: DraftTurn) -> Proposal:
        """See Drafter."""
        drafts = np.zeros((len(turn.host_rows), self.num_drafts), np.int64)
        counts = np.zeros(len(turn.host_rows), np.int32)
        rows = zip(turn.host_rows.tolist(), turn.anchors.tolist(), turn.lengths.tolist(), strict=True)
        for index, (row, anchor, length) in enumerate(rows):
            said = self._said[row, : length + 1]
            said[length] = anchor
            found = continuation(said, self.num_drafts, least=self._least, longest=self._longest)
            drafts[index, : len(found)] = found
            counts[index] = len(found)
        return Proposal(torch.from_numpy(drafts), torch.from_numpy(counts))

    def observe(self, seen: Seen) -> None:
        """Takes what the rows said. What was not accepted lies behind a row's length, and is written over."""
        layout, token_ids, first = seen.layout, seen.token_ids.numpy(), 0
        rows = zip(layout.host_rows.tolist(), layout.host_starts.tolist(), layout.host_widths.tolist(), strict=True)
        for row, start, width in rows:
            self._said[row, start : start + width] = token_ids[first : first + width]
            first += width


def continuation(said: Int32, count: int, *, least: int, longest: int) -> Int32:
    """Up to `count` tokens that followed the latest earlier place where the longest ending of `said` came."""
    ends = np.flatnonzero(said[:-1] == said[-1])  # places that end like all of it
    if not len(ends):
        return said[:0]
    lengths = np.ones(len(ends), np.int32)
    same = np.ones(len(ends), np.bool_)
    for back in range(1, min(longest, len(said) - 1)):
        same &= (ends >= back) & (said[ends - back] == said[-1 - back])
        if not same.any():
            break
        lengths[same] += 1
    best = int(lengths.max())
    if best < least:
        return said[:0]
    first = int(ends[lengths == best][-1]) + 1
    return said[first : first + count]
