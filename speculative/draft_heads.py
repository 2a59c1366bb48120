"""From the hidden states of a block's slots to drafts, from left to right, and to the chance that each is accepted."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from corymb.models.linear import Linear
from corymb.models.speculation import DraftTurn, Proposal
from corymb.speculative.draft_draw import Draw
from corymb.speculative.markov import MarkovHead


@dataclass(frozen=True, slots=True)
class Confidence:
    """The chance that a draft is accepted if all before it are."""

    product: Linear  # float32 [1, H], or [1, H + rank] where it sees the token before the draft
    sees_tokens: bool
    heats: Tensor  # float32 [H], sampling temperatures
    temperatures: Tensor  # float32 [H, num_drafts]: logits are divided by those of the nearest heat

    def __call__(self, hidden: Tensor, entries: Tensor | None) -> Tensor:
        """Logits float32 [R] of slots [R, H] and what the Markov head knows of the tokens before them [R, rank]."""
        seen = hidden if entries is None or not self.sees_tokens else torch.cat((hidden, entries), dim=1)
        return self.product(seen.float())[:, 0]

    def chances(self, logits: Tensor, heats: Tensor) -> Tensor:
        """Of logits [R, num_drafts], in rows with the sampling temperatures `heats` [R]."""
        nearest = (heats[:, None] - self.heats).abs().argmin(dim=1)
        return torch.sigmoid(logits / self.temperatures[nearest])


@dataclass(frozen=True, slots=True)
class DraftHeads:
    """All heads of a draft."""

    scores: Callable[[Tensor], Tensor]  # float32 [N, tokens that can be drafted] of hidden states [N, H]
    vocab_size: int  # of the target
    token_ids: Tensor | None = None  # int64: the target's ids of the tokens that can be drafted; None: all can
    markov: MarkovHead | None = None
    confidence: Confidence | None = None

    def draft(self, hidden: Tensor, turn: DraftTurn) -> Proposal:
        """Drafts of R rows from their slots [R, num_drafts, H]."""
        num_rows, num_drafts, size = hidden.shape
        logits = self.scores(hidden.reshape(-1, size)).view(num_rows, num_drafts, -1)
        draw = Draw(turn, self.token_ids, logits.shape[2])
        state = self.markov.start(num_rows, hidden.dtype) if self.markov else None
        previous, drafts, doubts = turn.anchors, [], []
        for place in range(num_drafts):
            slot, entries = hidden[:, place], None
            if self.markov is not None and state is not None:
                entries = self.markov.entries[previous].to(hidden.dtype)
                mixed = self.markov.mix(entries, slot, state)
                state = mixed.state
                logits[:, place] += self.markov.scores(mixed.inner)
            if self.confidence is not None:
                doubts.append(self.confidence(slot, entries))
            picked = draw(logits[:, place], place)
            previous = picked if self.token_ids is None else self.token_ids[picked]
            drafts.append(previous)
        return Proposal(
            torch.stack(drafts, dim=1),
            logits=self._spread(logits) if draw.any_random else None,
            confidence=self.confidence.chances(torch.stack(doubts, dim=1), turn.temperature)
            if self.confidence
            else None,
        )

    def _spread(self, logits: Tensor) -> Tensor:
        """Over the target's whole vocabulary."""
        if self.token_ids is None:
            return logits
        spread = logits.new_full((*logits.shape[:2], self.vocab_size), -torch.inf)
        return spread.index_copy_(2, self.token_ids, logits)
