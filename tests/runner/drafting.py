"""Drafters made for tests, and windows that are forced."""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch

from corymb.kernels.attention import AttentionSpec
from corymb.kernels.noise import exponential
from corymb.models.features import Capture
from corymb.models.precision import Precision
from corymb.models.speculation import DraftTurn, Proposal, Seen, Setting
from corymb.scheduler.plan import Int32, Opened, Sampled, StepPlan
from corymb.speculative.verification import Allotment, Verification

Say = Callable[[list[int], int], Sequence[int]]  # what comes after these tokens, so many


class ScriptedDrafter:
    """Drafts what a function says of everything before. Fails where what it observed is not what was said."""

    def __init__(self, say: Say, num_drafts: int, *, num_rows: int) -> None:
        self.num_drafts = num_drafts
        self._say = say
        self._said: list[list[int]] = [[] for _ in range(num_rows)]
        self.num_proposed = 0

    def capture(self, num_tokens: int) -> Capture | None:
        return None

    def open(self, opened: Opened) -> None:
        self._said[opened.row] = [*opened.prompt_ids.tolist(), *opened.output_ids.tolist()]

    def propose(self, turn: DraftTurn) -> Proposal:
        drafts = np.zeros((len(turn.host_rows), self.num_drafts), np.int64)
        for index, row in enumerate(turn.host_rows.tolist()):
            said = [*self._said[row][: int(turn.lengths[index])], int(turn.anchors[index])]
            drafts[index] = self._say(said, self.num_drafts)
            self.num_proposed += 1
        return Proposal(torch.from_numpy(drafts))

    def observe(self, seen: Seen) -> None:
        layout, first = seen.layout, 0
        keep = np.ones(len(seen.token_ids), np.bool_) if seen.keep is None else seen.keep.numpy()
        rows = zip(layout.host_rows.tolist(), layout.host_starts.tolist(), layout.host_widths.tolist(), strict=True)
        for row, start, width in rows:
            kept = seen.token_ids[first : first + width][torch.from_numpy(keep[first : first + width])].tolist()
            said = self._said[row]
            # A row of the padding is never opened; others must go on where they are, prompts included.
            if row:
                assert len(said) >= start, "tokens were left out"
                assert said[start : start + len(kept)] == kept[: max(len(said) - start, 0)], "it said something else"
            self._said[row] = (
                [*said[:start], *kept, *said[start + len(kept) :]]
                if start + len(kept) < len(said)
                else [
                    *said[:start],
                    *kept,
                ]
            )
            first += width


class DrawingDrafter(ScriptedDrafter):
    """Draws every draft from one distribution over the first token ids, and doubts a draft behind the last of them."""

    def __init__(self, chances: torch.Tensor, vocab_size: int, num_drafts: int, *, num_rows: int) -> None:
        super().__init__(lambda _, count: [0] * count, num_drafts, num_rows=num_rows)
        self._logits = torch.full((vocab_size,), -torch.inf)
        self._logits[: len(chances)] = chances.log()
        self._doubted = len(chances) - 1
        self.drawn_with: list[tuple[int, torch.Tensor]] = []  # noise keys [num_drafts, 2] behind so many known tokens

    def propose(self, turn: DraftTurn) -> Proposal:
        noise = exponential(turn.keys.reshape(-1, 2), torch.arange(len(self._logits), dtype=torch.int32))
        drafts = (self._logits.softmax(dim=0) / noise).argmax(dim=1).view(-1, self.num_drafts)
        self.drawn_with += zip(turn.lengths.tolist(), turn.keys.clone(), strict=True)
        confidence = torch.full(drafts.shape, 0.9)
        confidence[:, 1:][drafts[:, :-1] == self._doubted] = 0.1
        self.num_proposed += len(drafts)
        return Proposal(drafts, logits=self._logits.expand(*drafts.shape, -1), confidence=confidence)


class ForcedWindows:
    """Of every row any number of drafts, by chance, inside the budget."""

    checks_all = False

    def __init__(self, seed: int = 4) -> None:
        self._chooser = random.Random(seed)

    def allot(self, proposal: Proposal, most: Int32, budget: int | None) -> Int32:
        return np.array([self._chooser.randint(0, each) for each in most.tolist()], np.int32)


@dataclass
class Drafts:
    """A Speculation of a drafter that is made by a function of the number of rows."""

    make_drafter: Callable[[int], ScriptedDrafter]
    drafters: list[ScriptedDrafter] = field(default_factory=list)
    num_drafts: int = 4
    attention_specs: tuple[AttentionSpec, ...] = ()
    allotment: Allotment = field(default_factory=ForcedWindows)

    def weights_bytes(self, precision: Precision) -> int:
        return 0

    def make(self, setting: Setting) -> Verification:
        self.drafters.append(self.make_drafter(setting.cache.num_rows))
        return Verification(self.drafters[-1], self.allotment)


class ForcedBudgets:
    """Drafts in some steps, at random not in others."""

    def __init__(self, num_drafts: int, seed: int = 9) -> None:
        self.num_drafts = num_drafts
        self._chooser = random.Random(seed)
        self.num_accepted = 0

    def open(self, row: int, step: int) -> None:
        pass

    def budget(self, step: int, rows: Int32, starts: Int32, most: Int32) -> int | None:
        return self._chooser.choice([None, None, None, 0])

    def learn(self, plan: StepPlan, sampled: Sampled) -> None:
        if sampled.drafted is not None:
            assert (sampled.counts - 1 <= sampled.drafted.num_verified).all()
            self.num_accepted += int((sampled.counts - 1).sum())
