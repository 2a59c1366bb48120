"""Chooses the next token of every sampling row, from logits and the row's settings."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from corymb.kernels import logit_edits
from corymb.kernels.logit_edits import Entries
from corymb.kernels.noise import keys_of, row_keys
from corymb.kernels.sampling import Choice, Draws, Sampling, TorchSampling
from corymb.models.group import ALONE, Group
from corymb.models.penalties import Said
from corymb.models.placement import Place
from corymb.models.settings import Needs, Settings
from corymb.scheduler.plan import Bool, Int32, Masks, Opened

Index = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Turn:
    """Whose next tokens are chosen: N request rows."""

    rows: Int32  # [N]
    num_outputs: Int32  # [N], output tokens that each has; with `progress`, at least
    masks: Masks | None = None  # `index` into these rows; None where no grammar is followed
    # int64 [N, P]: what the row says before this token, though it is not settled yet. Of it, `num_ahead` [N] tokens.
    ahead: Tensor | None = None
    num_ahead: Tensor | None = None
    progress: Tensor | None = None  # int64 [N], output tokens of each, where the device alone knows them
    draws: Bool | None = None  # [N], whose token is drawn here, of those that want that; None: of all


class Sampler:
    """Owns the sampling state of all rows. A batch of greedy rows without edits costs one pass over its logits.

    Of several ranks all choose, from the same logits, and keep what rank 0 chose.
    """

    def __init__(
        self,
        num_rows: int,
        eos_ids: frozenset[int],
        place: Place,
        sampling: Sampling | None = None,
        *,
        group: Group = ALONE,
    ) -> None:
        self._sampling: Sampling = sampling or TorchSampling()
        self.settings = Settings(num_rows, eos_ids)
        self._said = Said(num_rows, place)
        self._place = place
        self.group = group

    def open(self, opened: Opened) -> None:
        """A request took a row."""
        self.settings.open(opened.row, opened.sampling, opened.logprobs, embeds=opened.embeds)
        if self.settings.needs[opened.row] & Needs.PENALTIES:
            self._said.open(opened.row, opened.prompt_ids, opened.output_ids)

    def choose(self, logits: Tensor, turn: Turn) -> Choice:
        """The next token of every row of the turn, from logits [N, V], which it may change."""
        rows, masks = turn.rows, turn.masks
        needs = self.settings.required(rows, turn.num_outputs)
        if masks is not None:
            needs[masks.index] &= ~np.uint8(Needs.MINIMUM)  # their masks know of it
        if masks is None and not (needs & ~np.uint8(Needs.LOGPROBS | Needs.EMBEDDING)).any():
            choice = self._sampling.greedy(logits)
            self.group.copy_from_first(choice.token_ids)
            return choice
        self._edit(logits, turn, needs)
        if masks is not None and len(masks.index):
            self._sampling.mask(logits, self._place(masks.index.astype(np.int64)), self._place(masks.bits))
        choice = self._sampling.greedy(logits)
        self._draw(choice, logits, turn)
        self.group.copy_from_first(choice.token_ids)
        if turn.ahead is None:
            self.say(rows, choice.token_ids)
        return choice

    def say(self, rows: Int32, token_ids: Tensor) -> None:
        """Each of these different rows [N] has said one more token, int64 [N]: what penalties count."""
        penalized = np.flatnonzero(self.settings.needs[rows] & Needs.PENALTIES)
        if len(penalized):
            self._said.append(rows[penalized], token_ids[self._place(penalized)])

    def say_runs(self, rows: Int32, token_ids: Tensor, counts: Tensor, most: Int32) -> None:
        """Each of these different rows [N] has said the first `counts` [N] of token_ids int64 [N, P], and `most` [N]
        tokens at most in all, prompt included."""
        penalized = np.flatnonzero(self.settings.needs[rows] & Needs.PENALTIES)
        if len(penalized):
            index = self._place(penalized)
            self._said.append_runs(rows[penalized], token_ids[index], counts[index], most[penalized])

    def _edit(self, logits: Tensor, turn: Turn, needs: NDArray[np.uint8]) -> None:
        rows = turn.rows
        biased = np.flatnonzero(needs & Needs.BIAS)
        if len(biased):
            bias = np.concatenate([self.settings.bias[row] for row in rows[biased].tolist()])
            logit_edits.add_bias(logits, self._entries(biased, rows, self.settings.bias_ids), self._place(bias))
        penalized = np.flatnonzero(needs & Needs.PENALTIES)
        if len(penalized):
            weights = self.settings.penalties[:, rows[penalized]]
            penalties = self._said.penalties(penalized, rows[penalized], weights)
            if turn.ahead is not None and turn.num_ahead is not None:
                index = self._place(penalized)
                penalties = logit_edits.say_ahead(penalties, turn.ahead[index], turn.num_ahead[index])
            logit_edits.penalize(logits, penalties)
        unfinished = np.flatnonzero(needs & Needs.MINIMUM)
        if len(unfinished):
            entries = self._entries(unfinished, rows, self.settings.ending_ids)
            if turn.progress is None:
                logit_edits.forbid(logits, entries)
            else:
                early = turn.progress < self._place(self.settings.num_minimum[rows])
                logit_edits.forbid_in(logits, entries, early)

    def _entries(self, index: Index, rows: Int32, ids_of_row: Mapping[int, Index]) -> Entries:
        token_ids = [ids_of_row[row] for row in rows[index].tolist()]
        widths = [len(ids) for ids in token_ids]
        return Entries(self._place(np.repeat(index, widths)), self._place(np.concatenate(token_ids)))

    def _draw(self, choice: Choice, logits: Tensor, turn: Turn) -> None:
        """Replaces the choice of rows that do not want their best token."""
        rows, num_outputs = turn.rows, turn.num_outputs
        needs = self.settings.needs[rows] & np.uint8(Needs.RANDOM | Needs.FILTERS)
        if turn.draws is not None:
            needs[~turn.draws] = 0
        for wanted in (Needs.RANDOM, Needs.RANDOM | Needs.FILTERS):
            index = np.flatnonzero(needs == wanted)
            if len(index):
                progress = None if turn.progress is None else turn.progress[self._place(index)]
                draws = self.draws(rows[index], num_outputs[index], progress)
                filtered = bool(wanted & Needs.FILTERS)
                self._sampling.draw(logits, self._place(index), draws, choice.token_ids, filtered=filtered)

    def draws(self, rows: Int32, num_outputs: Int32, progress: Tensor | None = None) -> Draws:
        """How rows [N] with `num_outputs` [N] tokens draw their next; `progress`: see Turn."""
        settings, place = self.settings, self._place
        seeds = settings.seeds[rows]
        return Draws(
            temperature=place(settings.temperature[rows]),
            top_k=place(settings.top_k[rows]),
            top_p=place(settings.top_p[rows]),
            min_p=place(settings.min_p[rows]),
            any_min_p=bool(settings.min_p[rows].any()),
            keys=place(row_keys(seeds, num_outputs))
            if progress is None
            else keys_of(place(seeds.view(np.int64)), progress),
        )
