"""Drafts of a step on a GPU, and what the target makes of them: everything is queued, and nobody waits for lengths."""

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from corymb.kernels import acceptance
from corymb.kernels.noise import keys_of, seeds_of_step
from corymb.kernels.packing import Windows
from corymb.models.logprobs import Positions, Scores, log_probabilities, score
from corymb.models.sampler import Turn
from corymb.models.settings import Needs
from corymb.models.speculation import (
    DeviceOutputs,
    DeviceTarget,
    Drafter,
    DraftTurn,
    Proposal,
    Seen,
    Verified,
)
from corymb.scheduler.plan import Int32, Masks, StepPlan
from corymb.speculative.verification import Allotment, WholeBlocks

Index = NDArray[np.int64]


class DeviceVerification:
    """See DeviceSpeculator."""

    def __init__(self, drafter: Drafter, allotment: Allotment | None = None) -> None:
        self.drafter = drafter
        self._allotment = allotment or WholeBlocks()

    def draft(self, plan: StepPlan, target: DeviceTarget, drafted: Callable[[], None]) -> "DeviceBlock":
        """See DeviceSpeculator."""
        assert plan.windows is not None, "only plans with windows draft"
        standing = stand(plan, target)
        turn, most = device_turn(plan, standing, target, self.drafter.num_drafts), target.place(plan.windows.most)
        if not plan.windows.most.any():
            drafted()
            nothing = Proposal(turn.anchors.new_zeros(plan.num_rows, 0))
            return self._verify(plan, target, standing, (nothing, most, most), turn.anchors)
        proposal = self.drafter.propose(turn)
        if proposal.counts is not None:
            most = torch.minimum(most, proposal.counts)
        windows = self._allotment.allot_on_device(proposal, most, plan.windows.budget)
        verified = most if self._allotment.checks_all else windows
        drafted()
        return self._verify(plan, target, standing, (proposal, windows, verified), turn.anchors)

    def _verify(
        self,
        plan: StepPlan,
        target: DeviceTarget,
        standing: "Standing",
        drafted: tuple[Proposal, Tensor, Tensor],
        anchors: Tensor,
    ) -> "DeviceBlock":
        proposal, windows, num_verified = drafted
        packing = Windows(standing.rows, standing.lengths, 1 + num_verified, anchors, proposal.token_ids)
        verified = target.verify(packing, self._num_tokens(plan))
        return DeviceBlock(plan, target, self.drafter, standing, proposal, windows, num_verified, verified)

    def _num_tokens(self, plan: StepPlan) -> int:
        """The most that a step verifies."""
        assert plan.windows is not None, "only plans with windows draft"
        most, budget = int(plan.windows.most.sum()), plan.windows.budget
        return plan.num_rows + (most if budget is None or self._allotment.checks_all else min(most, budget))


@dataclass(frozen=True, slots=True)
class Standing:
    """Where a plan's rows are."""

    rows: Tensor  # int64 [R]
    lengths: Tensor  # int32 [R], as of before the step
    num_outputs: Tensor  # int64 [R]; the token that was sampled last is one of them, though its keys are not written


def stand(plan: StepPlan, target: DeviceTarget) -> Standing:
    """Asks the device, and does not wait for the answer."""
    rows = target.place(plan.rows.astype(np.int64))
    num_prompt = np.fromiter((len(target.rows.prompts[row]) for row in plan.rows.tolist()), np.int64, plan.num_rows)
    lengths = target.rows.lengths[rows]
    return Standing(rows, lengths, lengths + target.place(1 - num_prompt))


def device_turn(plan: StepPlan, standing: Standing, target: DeviceTarget, num_drafts: int) -> DraftTurn:
    """The rows of a plan, as drafters see them; see verification.draft_turn."""
    assert plan.windows is not None, "only plans with windows draft"
    place, settings = target.place, target.sampler.settings
    random = (settings.needs[plan.rows] & Needs.RANDOM).astype(bool)
    seeds = settings.seeds[plan.rows]
    seeds = np.where(settings.seeded[plan.rows], seeds, seeds_of_step(seeds, plan.step))
    return DraftTurn(
        host_rows=plan.rows,
        farthest=_farthest(plan),
        rows=standing.rows,
        most=plan.windows.most,
        anchors=target.rows.last_sampled[standing.rows],
        lengths=standing.lengths,
        table=target.rows.table,
        full_to_sliding=target.rows.full_to_sliding,
        temperature=place(np.where(random, settings.temperature[plan.rows], 0).astype(np.float32)),
        random=place(np.flatnonzero(random)),
        keys=keys_of_places(place(seeds.view(np.int64)), standing.num_outputs, num_drafts),
    )


def _farthest(plan: StepPlan) -> int:
    """Slots are reserved as far as a row can get; the padding row needs none."""
    assert plan.windows is not None, "only plans with windows draft"
    windows = plan.windows
    return int(np.maximum(windows.slot_starts + windows.slot_counts, plan.starts + 1 + windows.most).max())


def keys_of_places(seeds: Tensor, num_outputs: Tensor, count: int, *, other: bool = False) -> Tensor:
    """Keys int32 [R, count, 2] of the next `count` output tokens of rows with `seeds` [R]."""
    indices = num_outputs[:, None] + torch.arange(count, device=seeds.device)
    keys = keys_of(seeds.repeat_interleave(count), indices.reshape(-1), other=other)
    return keys.view(len(seeds), count, 2)


@dataclass(frozen=True, slots=True)
class DeviceBlock:
    """See Block. W places a row: what the target says behind the anchor and behind each draft. Places beyond a row's
    window repeat its last; nothing reads them."""

    plan: StepPlan
    target: DeviceTarget
    drafter: Drafter
    standing: Standing
    proposal: Proposal
    windows: Tensor
    num_verified: Tensor
    verified: Verified

    @property
    def token_ids(self) -> Tensor | None:
        """See Block."""
        return self.proposal.token_ids if self.width > 1 else None

    @property
    def width(self) -> int:
        """W."""
        return self.proposal.token_ids.shape[1] + 1

    def settle(self, masks: Masks | None) -> DeviceOutputs:
        """See Block."""
        at, choice = self._where(), self.verified.choice
        own, usable = choice.token_ids[at], choice.usable[at]
        special = self._special()
        chosen = self._choose(special, at, masks) if len(special) else None
        if chosen is not None:
            where = self.target.place(special)
            own[where], usable[where] = chosen.token_ids, chosen.usable
        counts, outputs = acceptance.match(own, self.proposal.token_ids, self.windows), own
        if chosen is not None and self.width > 1:
            for free in self._draw_freely(special):
                counts, outputs = self._reject(chosen, counts, outputs, free)
        counts = counts + 1
        places = torch.arange(self.width, device=at.device)
        self._commit(outputs, counts)
        return DeviceOutputs(
            outputs,
            counts,
            self.num_verified,
            (usable | (places >= counts[:, None])).all(dim=1),
            self.proposal.confidence,
            self._scores(special, chosen.logprobs, outputs) if chosen is not None else None,
        )

    def _where(self) -> Tensor:
        """Indices [R, W] of tokens."""
        places = torch.arange(self.width, dtype=torch.int32, device=self.windows.device)
        firsts = self.verified.packed.offsets[: self.plan.num_rows, None]
        return (firsts + torch.minimum(places, self.num_verified[:, None])).long()

    def _special(self) -> Index:
        """Rows that want more than their likeliest token."""
        plan, settings = self.plan, self.target.sampler.settings
        needs = settings.required(plan.rows, plan.num_outputs) & ~np.uint8(Needs.EMBEDDING)
        wants = needs != 0
        if plan.constrained is not None:
            wants[plan.constrained] = True
        return np.flatnonzero(wants)

    def _choose(self, special: Index, at: Tensor, masks: Masks | None) -> "Chosen":
        """What the rows at `special` [S] say in each place."""
        plan, target, width = self.plan, self.target, self.width
        place, settings, where = target.place, target.sampler.settings, target.place(special)
        rows = np.repeat(plan.rows[special], width)
        logits = target.logits(at[where].reshape(-1))
        wanted = np.flatnonzero(settings.needs[rows] & Needs.LOGPROBS)
        logprobs = log_probabilities(logits[place(wanted)]) if len(wanted) else None  # before choosing changes them
        places = torch.arange(width, device=at.device)
        progress = (self.standing.num_outputs[where, None] + places).reshape(-1)
        turn = Turn(
            rows,
            (np.repeat(plan.num_outputs[special], width) + np.tile(np.arange(width), len(special))).astype(np.int32),
            None if masks is None else _by_place(masks, special, width),
            ahead=self.proposal.token_ids[where].repeat_interleave(width, dim=0),
            num_ahead=places.repeat(len(special)),
            progress=progress,
        )
        choice = target.sampler.choose(logits, turn)
        shape = (len(special), width)
        return Chosen(
            turn, logits, choice.token_ids.view(shape), choice.usable.view(shape), special=special, logprobs=logprobs
        )

    def _draw_freely(self, special: Index) -> list[Index]:
        """Places in `special` of rows that sample and promised nothing about what: without top-k and top-p, and
        others."""
        settings, rows = self.target.sampler.settings, self.plan.rows[special]
        needs = settings.needs[rows]
        free = (needs & Needs.RANDOM).astype(bool) & ~settings.seeded[rows]
        filtered = (needs & Needs.FILTERS).astype(bool)
        return [np.flatnonzero(some) for some in (free & ~filtered, free & filtered) if some.any()]

    def _reject(self, chosen: "Chosen", counts: Tensor, outputs: Tensor, free: Index) -> tuple[Tensor, Tensor]:
        """Replaces what some rows accept and say by rejection sampling from their edited logits."""
        place, sampler, width = self.target.place, self.target.sampler, self.width
        settings, rows = sampler.settings, self.plan.rows[chosen.special[free]]
        where, num_free = place(chosen.special[free]), len(free)
        flat = (free[:, None] * width + np.arange(width)).reshape(-1)
        assert chosen.turn.progress is not None, "the device alone knows how far rows are"
        draws = sampler.draws(chosen.turn.rows[flat], chosen.turn.num_outputs[flat], chosen.turn.progress[place(flat)])
        filtered = bool(settings.needs[rows[0]] & Needs.FILTERS)  # all are of one kind
        chances = acceptance.probabilities(chosen.logits[place(flat)], draws, filtered=filtered)
        drafts, proposed = self.proposal.token_ids[where], None
        if self.proposal.logits is not None:
            proposed = (self.proposal.logits[where] / place(settings.temperature[rows])[:, None, None]).softmax(dim=2)
        seeds = place(settings.seeds[rows].view(np.int64))
        keys = keys_of_places(seeds, self.standing.num_outputs[where], width, other=True)
        accepted, last = acceptance.reject(
            chances.view(num_free, width, -1), proposed, drafts, self.windows[where], keys
        )
        said = torch.cat((drafts, drafts[:, :1]), dim=1).scatter_(1, accepted[:, None], last[:, None])
        counts, outputs = counts.clone(), outputs.clone()
        counts[where], outputs[where] = accepted, said
        return counts, outputs

    def _commit(self, outputs: Tensor, counts: Tensor) -> None:
        """Leaves each row where it came to. `counts` [R] of the outputs [R, W] are said."""
        plan, target, verified = self.plan, self.target, self.verified
        rows, standing, packed = target.rows, self.standing, verified.packed
        rows.last_sampled[standing.rows] = outputs.gather(1, counts[:, None] - 1)[:, 0]
        rows.lengths[standing.rows] = (standing.lengths + counts).int()
        assert plan.windows is not None, "only plans with windows draft"
        most = plan.windows.slot_starts + plan.windows.slot_counts + 1
        target.sampler.say_runs(plan.rows, outputs, counts, most)
        kept = torch.cat((counts, counts.new_zeros(1)))[packed.owners.long()]  # of padding, nothing
        slots = torch.where(packed.places < kept, packed.slots, 0)
        layout = replace(verified.layout, slots=slots)
        self.drafter.observe(Seen(layout, packed.token_ids, verified.features, None, located=True))

    def _scores(self, special: Index, logprobs: Tensor | None, outputs: Tensor) -> Scores | None:
        if logprobs is None:
            return None
        settings, place, width = self.target.sampler.settings, self.target.place, self.width
        scored = special[(settings.needs[self.plan.rows[special]] & Needs.LOGPROBS) != 0]
        owners = np.repeat(scored, width)
        options = [settings.logprobs[row] for row in self.plan.rows[owners].tolist()]
        return score(logprobs, outputs[place(scored)].reshape(-1), Positions(owners.tolist(), options), place)


@dataclass(frozen=True, slots=True)
class Chosen:
    """What S rows say in each of their W places, by their own settings."""

    turn: Turn
    logits: Tensor  # [S × W, V], edited
    token_ids: Tensor  # int64 [S, W]
    usable: Tensor  # bool [S, W]
    special: Index  # [S]
    logprobs: Tensor | None  # of the places of those that want any


def _by_place(masks: Masks, special: Index, width: int) -> Masks:
    """Masks by index of the places of the rows at `special`, which is sorted and holds all of them."""
    places: Int32 | int = 0 if masks.places is None else masks.places
    index = np.searchsorted(special, masks.index) * width + places
    return Masks(index.astype(np.int32), masks.bits)
