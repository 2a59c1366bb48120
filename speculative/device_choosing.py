"""What rows of a verified step say that want more than their likeliest token."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from corymb.kernels import acceptance
from corymb.kernels.settling import Drafted, Said, say
from corymb.kernels.standing import Standing, keys_of_places
from corymb.models.group import of_first
from corymb.models.logprobs import Positions, Scores, log_probabilities, score
from corymb.models.sampler import Turn
from corymb.models.settings import Needs
from corymb.models.speculation import DeviceTarget, Verified
from corymb.scheduler.plan import Int32, Masks, StepPlan

Index = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Judged:
    """What all rows of a step say."""

    said: Said
    scores: Scores | None


@dataclass(frozen=True, slots=True)
class Choices:
    """What S rows say in each of their W places, by their own settings."""

    turn: Turn
    logits: Tensor  # [S × W, V], edited
    logprobs: Tensor | None  # of the places of those that want any
    token_ids: Tensor  # int64 [S, W]
    usable: Tensor  # bool [S, W]


def special_rows(plan: StepPlan, target: DeviceTarget) -> Index:
    """Rows that want more than their likeliest token."""
    needs = target.sampler.settings.required(plan.rows, plan.num_outputs) & ~np.uint8(Needs.EMBEDDING)
    wants = needs != 0
    if plan.constrained is not None:
        wants[plan.constrained] = True
    return np.flatnonzero(wants)


@dataclass(frozen=True, slots=True)
class Chooser:
    """The rows at `special` [S] of a step. W places a row: what the target says behind the anchor and behind each
    draft. Places beyond a row's window repeat its last; nothing reads them."""

    plan: StepPlan
    target: DeviceTarget
    standing: Standing
    drafted: Drafted
    logits: Tensor | None  # of the drafts, see Proposal
    special: Index

    @property
    def width(self) -> int:
        """W."""
        return self.drafted.token_ids.shape[1] + 1

    def judge(self, verified: Verified, masks: Masks | None) -> Judged:
        """`masks`: of the plan's constrained rows."""
        said = say(verified.choice, verified.packed, self.drafted)
        own, where = said.token_ids, self.target.place(self.special)
        choices = self._choose(verified, where, masks)
        own[where], said.usable[where] = choices.token_ids, choices.usable
        counts = acceptance.match(own, self.drafted.token_ids, self.drafted.windows)
        if self.width > 1:
            for free in self._free():
                self._reject(choices, own, counts, free)
        own, counts = of_first(self.target.sampler.group, own, counts)
        counts += 1
        return Judged(Said(own, said.usable, counts), self._score(choices.logprobs, own))

    def _choose(self, verified: Verified, where: Tensor, masks: Masks | None) -> Choices:
        plan, target, width, count = self.plan, self.target, self.width, len(self.special)
        place, settings, places = target.place, target.sampler.settings, torch.arange(width, device=where.device)
        rows = np.repeat(plan.rows[self.special], width)
        firsts, last = verified.packed.offsets[where], self.drafted.num_verified[where]
        logits = target.logits((firsts[:, None] + torch.minimum(places, last[:, None])).reshape(-1))
        wanted = np.flatnonzero(settings.needs[rows] & Needs.LOGPROBS)
        logprobs = log_probabilities(logits[place(wanted)]) if len(wanted) else None  # before choosing changes them
        turn = Turn(
            rows,
            (np.repeat(plan.num_outputs[self.special], width) + np.tile(np.arange(width), count)).astype(np.int32),
            None if masks is None else _by_place(masks, self.special, width),
            ahead=self.drafted.token_ids[where].repeat_interleave(width, dim=0),
            num_ahead=places.repeat(count),
            progress=(self.standing.num_outputs[where, None] + places).reshape(-1),
            draws=settings.seeded[rows] if width > 1 else None,  # for the others `_reject` does
        )
        choice = target.sampler.choose(logits, turn)
        return Choices(turn, logits, logprobs, choice.token_ids.view(count, width), choice.usable.view(count, width))

    def _free(self) -> Iterator[Index]:
        """Places in `special` of rows that sample and promised nothing about what: those without top-k and top-p, and
        others."""
        settings, rows = self.target.sampler.settings, self.plan.rows[self.special]
        needs = settings.needs[rows]
        free = (needs & Needs.RANDOM).astype(bool) & ~settings.seeded[rows]
        filtered = (needs & Needs.FILTERS).astype(bool)
        for some in (free & ~filtered, free & filtered):
            if some.any():
                yield np.flatnonzero(some)

    def _reject(self, choices: Choices, own: Tensor, counts: Tensor, free: Index) -> None:
        """Replaces what some rows accept and say by rejection sampling from their edited logits."""
        place, sampler, width = self.target.place, self.target.sampler, self.width
        settings, rows, where = sampler.settings, self.plan.rows[self.special[free]], place(self.special[free])
        flat = (free[:, None] * width + np.arange(width)).reshape(-1)
        turn, at = choices.turn, place(flat)
        assert turn.progress is not None, "the device alone knows how far rows are"
        draws = sampler.draws(turn.rows[flat], turn.num_outputs[flat], turn.progress[at])
        filtered = bool(settings.needs[rows[0]] & Needs.FILTERS)  # all are of one kind
        chances = acceptance.probabilities(choices.logits[at], draws, filtered=filtered).view(len(free), width, -1)
        drafts, proposed = self.drafted.token_ids[where], None
        if self.logits is not None:
            proposed = (self.logits[where] / place(settings.temperature[rows])[:, None, None]).softmax(dim=2)
        seeds = place(settings.seeds[rows].view(np.int64))
        keys = keys_of_places(seeds, self.standing.num_outputs[where], width, other=True)
        accepted, last = acceptance.reject(chances, proposed, drafts, self.drafted.windows[where], keys)
        counts[where] = accepted
        own[where] = torch.cat((drafts, drafts[:, :1]), dim=1).scatter_(1, accepted[:, None], last[:, None])

    def _score(self, logprobs: Tensor | None, own: Tensor) -> Scores | None:
        """Of all places of the rows that want any."""
        if logprobs is None:
            return None
        settings, place = self.target.sampler.settings, self.target.place
        scored = self.special[(settings.needs[self.plan.rows[self.special]] & Needs.LOGPROBS) != 0]
        owners = np.repeat(scored, self.width)
        options = [settings.logprobs[row] for row in self.plan.rows[owners].tolist()]
        return score(logprobs, own[place(scored)].reshape(-1), Positions(owners.tolist(), options), place)


def _by_place(masks: Masks, special: Index, width: int) -> Masks:
    """Masks by index of the places of the rows at `special`, which is sorted and holds all of them."""
    places: Int32 | int = 0 if masks.places is None else masks.places
    index = np.searchsorted(special, masks.index) * width + places
    return Masks(index.astype(np.int32), masks.bits)
