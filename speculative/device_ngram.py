"""NGRAM on a GPU: rows' tokens are kept and looked up there, so that nobody waits for what was just said."""

import torch
from torch import Tensor

from corymb.models.features import Capture
from corymb.models.placement import Place
from corymb.models.speculation import DraftTurn, Proposal, Seen
from corymb.scheduler.plan import Opened


class DeviceNgramDrafter:
    """See ngram.NgramDrafter: the same drafts, of device tensors."""

    def __init__(self, num_drafts: int, said: Tensor, *, least: int, longest: int) -> None:
        """`said`: int32 [num_rows, context_length], to keep every row's tokens in."""
        self.num_drafts = num_drafts
        self._least = least
        self._longest = longest
        self._said = said
        self._place = Place(said.device)

    def capture(self, num_tokens: int) -> Capture | None:
        """Nothing."""

    def open(self, opened: Opened) -> None:
        """A request took a row."""
        for token_ids, first in ((opened.prompt_ids, 0), (opened.output_ids, len(opened.prompt_ids))):
            if len(token_ids):
                self._said[opened.row, first : first + len(token_ids)].copy_(self._place(token_ids.copy()))

    def propose(self, turn: DraftTurn) -> Proposal:
        """See Drafter."""
        length = turn.lengths.long().clamp(max=turn.farthest - 1)  # the padding row may be anywhere
        self._said[turn.rows, length] = turn.anchors.int()
        return continuations(
            self._said[turn.rows, : turn.farthest], length, self.num_drafts, least=self._least, longest=self._longest
        )

    def observe(self, seen: Seen) -> None:
        """Takes what the rows said. What was not accepted lies behind a row's length, and is written over."""
        layout, token_ids = seen.layout, seen.token_ids
        token = torch.arange(len(token_ids), dtype=torch.int32, device=token_ids.device)
        owners = torch.searchsorted(layout.offsets[1:].contiguous(), token, right=True)
        self._said[layout.rows[owners].long(), layout.positions] = token_ids.int()


def continuations(said: Tensor, length: Tensor, count: int, *, least: int, longest: int) -> Proposal:
    """Up to `count` tokens that followed the latest earlier place where the longest ending of each row came: its first
    length[r] + 1 tokens of `said` [R, L]."""
    at = torch.arange(said.shape[1], device=said.device)
    runs = torch.zeros(said.shape, dtype=torch.int32, device=said.device)
    same = at < length[:, None]  # places that end like all of the row, so far
    for back in range(longest):
        wanted = said.gather(1, (length - back).clamp(min=0)[:, None])
        before = torch.roll(said, back, dims=1)
        same &= (before == wanted) & (at >= back) & (back <= length)[:, None]
        runs += same
    best = runs.max(dim=1).values
    ends = torch.where((runs == best[:, None]) & (runs > 0), at, -1).max(dim=1).values
    found = (best >= max(least, 1)) & (ends >= 0)
    counts = torch.where(found, (length - ends).clamp(max=count), 0)
    places = torch.arange(count, device=said.device)
    drafts = said.gather(1, (ends[:, None] + 1 + places).clamp(max=said.shape[1] - 1))
    return Proposal(torch.where(places < counts[:, None], drafts, 0).long(), counts.int())
