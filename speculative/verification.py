"""Drafts of a step, and what the target makes of them."""

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from corymb.kernels import acceptance
from corymb.kernels.allotting import Allot
from corymb.kernels.noise import other_keys, row_keys, seeds_of_step
from corymb.models.execution import UNUSABLE, TimedMasks
from corymb.models.group import of_first
from corymb.models.locating import widen
from corymb.models.logprobs import Positions, Scores, entries, log_probabilities, score
from corymb.models.sampler import Sampler, Turn
from corymb.models.settings import Needs
from corymb.models.speculation import AskMasks, Drafter, DraftTurn, Proposal, Seen, Target
from corymb.scheduler.plan import Blocks, Drafted, Drafts, Int32, Masks, Sampled, StepPlan
from corymb.speculative.block_estimate import BlockEstimate, Law, Step


class Allotment(Protocol):
    """Decides how many drafts of each row are verified."""

    checks_all: bool  # all drafts are verified, and no more accepted than allotted

    def allot(self, proposal: Proposal, most: Int32, budget: int | None) -> Int32:
        """Windows [R], each at most `most` [R]; `budget` over all rows, None for no bound."""
        ...

    def allot_on_device(self, proposal: Proposal, most: Tensor, budget: int | None, by: Allot) -> Tensor:
        """The same for int32 [R] of a device that nobody waits for, by this back end."""
        ...


class WholeBlocks:
    """Every draft is verified."""

    checks_all = False

    def allot(self, _: Proposal, most: Int32, budget: int | None) -> Int32:
        """See Allotment."""
        assert budget is None, "nothing here chooses between drafts"
        return most

    def allot_on_device(self, _: Proposal, most: Tensor, budget: int | None, by: Allot) -> Tensor:  # noqa: ARG002
        """See Allotment."""
        assert budget is None, "nothing here chooses between drafts"
        return most


@dataclass(frozen=True, slots=True)
class Verified:
    """What a step of drafts gave."""

    outputs: Tensor  # int64 [R, num_drafts + 1]
    counts: Int32  # [R], of the outputs
    windows: Int32  # [R], drafts verified
    allowed: Int32  # [R], of these, drafts that might be accepted
    usable: NDArray[np.bool_]  # [R]
    confidence: Tensor | None
    scores: Scores | None
    draft_s: float
    verify_s: float
    blocks: Blocks

    def read(self) -> Sampled:
        """See Readable."""
        inside = np.arange(self.outputs.shape[1]) < self.counts[:, None]
        confidence = None if self.confidence is None else self.confidence.float().cpu().numpy()
        return Sampled(
            token_ids=self.outputs.cpu().numpy()[inside].astype(np.int32),
            counts=self.counts,
            forward_s=self.draft_s + self.verify_s,
            logprobs=entries(self.scores) if self.scores else {},
            errors=dict.fromkeys(np.flatnonzero(~self.usable).tolist(), UNUSABLE),
            drafted=Drafted(self.windows, confidence, self.draft_s, self.verify_s, self.allowed, self.blocks),
        )


@dataclass(frozen=True, slots=True)
class Block:
    """What a step verifies."""

    proposal: Proposal
    windows: Int32  # [R], drafts that may be accepted
    masks: AskMasks  # of the plan's constrained rows


class Verification:
    """A Speculator for executions whose rows lie on the host. Of several ranks all draft and verify; what is verified
    and what is accepted, rank 0 decides."""

    def __init__(self, drafter: Drafter, allotment: Allotment | None = None) -> None:
        self.drafter = drafter
        self._allotment = allotment or WholeBlocks()
        self._estimate = BlockEstimate()

    def run(self, plan: StepPlan, ask: AskMasks, target: Target) -> Verified:
        """See Speculator."""
        begun_s, timed = time.perf_counter(), TimedMasks(ask)
        assert plan.windows is not None, "only plans with windows draft"
        proposal = self.drafter.propose(draft_turn(plan, target, self.drafter.num_drafts))
        most = plan.windows.most.astype(np.int32)
        if proposal.counts is not None:
            most = np.minimum(most, proposal.counts.cpu().numpy()).astype(np.int32)
        allotted = self._allot(proposal, most, plan.windows.budget, target)
        proposal, most, windows = allotted.proposal, allotted.most, allotted.windows
        verified = most if self._allotment.checks_all else windows
        drafts = proposal.token_ids.cpu().numpy().astype(np.int32)
        if plan.constrained is not None and plan.windows.most[plan.constrained].any():
            timed.offer(Drafts(drafts[plan.constrained], windows[plan.constrained]))
        anchors = target.rows.last_sampled.cpu().numpy()[plan.rows].astype(np.int32)
        wide = widen(replace(plan, token_ids=anchors), target.rows, drafts, 1 + verified)
        drafted_s = time.perf_counter()
        computed = target.compute(wide)
        judged = _judge(target, wide, Block(proposal, windows, timed), computed.hidden)
        self._commit(target, wide, judged)
        keep = target.place(judged.places < judged.counts[judged.owners])
        self.drafter.observe(Seen(computed.layout, computed.token_ids, computed.features, keep))
        verified_s = time.perf_counter()
        outputs = judged.outputs.cpu().numpy().astype(np.int32)
        step = Step(plan.rows, wide.starts, drafts, most, windows, outputs, judged.counts, judged.laws)
        return Verified(
            outputs=judged.outputs,
            counts=judged.counts,
            windows=verified,
            allowed=windows,
            usable=judged.usable,
            confidence=proposal.confidence,
            scores=judged.scores,
            draft_s=drafted_s - begun_s,
            verify_s=verified_s - drafted_s - timed.waited_s,
            blocks=self._estimate.follow(step),
        )

    def _allot(self, proposal: Proposal, most: Int32, budget: int | None, target: Target) -> "_Allotted":
        windows = self._allotment.allot(proposal, most, budget)
        counts = target.place(np.stack((most, windows), axis=1))
        token_ids, counts = of_first(target.sampler.group, proposal.token_ids, counts)
        most, windows = counts.cpu().numpy().T
        return _Allotted(replace(proposal, token_ids=token_ids), most, windows)

    @staticmethod
    def _commit(target: Target, plan: StepPlan, judged: "_Judged") -> None:
        rows, place = target.rows, target.place
        last = judged.outputs[torch.arange(len(judged.counts)), place(judged.counts.astype(np.int64) - 1)]
        at = place(plan.rows.astype(np.int64))
        rows.last_sampled[at] = last
        rows.lengths[at] = place(plan.starts + judged.counts)
        for nth in range(int(judged.counts.max())):
            said = np.flatnonzero(judged.counts > nth)
            target.sampler.say(plan.rows[said], judged.outputs[place(said), nth])


@dataclass(frozen=True, slots=True)
class _Allotted:
    """What rank 0 drafts, and lets be verified."""

    proposal: Proposal
    most: Int32  # [R], drafts of each row
    windows: Int32  # [R], those that may be accepted


@dataclass(frozen=True, slots=True)
class _Judged:
    outputs: Tensor  # int64 [R, num_drafts + 1]
    counts: Int32  # [R]
    usable: NDArray[np.bool_]  # [R]
    scores: Scores | None
    owners: NDArray[np.int64]  # [T], index of each token's row in the plan
    places: NDArray[np.int64]  # [T], drafts before it in its row
    laws: Sequence[Law]  # of rows that rejection sampling drew for


@dataclass(frozen=True, slots=True)
class _Said:
    counts: Tensor  # int64 [R], drafts accepted
    outputs: Tensor  # int64 [R, num_drafts + 1]
    laws: Sequence[Law] = ()


def draft_turn(plan: StepPlan, target: Target, num_drafts: int) -> DraftTurn:
    """The rows of a located plan, as drafters see them."""
    assert plan.windows is not None, "only plans with windows draft"
    place, settings = target.place, target.sampler.settings
    random = (settings.needs[plan.rows] & Needs.RANDOM).astype(bool)
    rows = place(plan.rows.astype(np.int64))
    return DraftTurn(
        host_rows=plan.rows,
        farthest=int((plan.starts + 1 + plan.windows.most).max()),
        rows=rows,
        most=plan.windows.most,
        limits=place(plan.windows.most),
        anchors=target.rows.last_sampled[rows],
        lengths=place(plan.starts.astype(np.int32)),
        table=target.rows.table,
        full_to_sliding=target.rows.full_to_sliding,
        temperature=place(np.where(random, settings.temperature[plan.rows], 0).astype(np.float32)),
        random=place(np.flatnonzero(random)),
        keys=place(_keys(row_keys, _draft_seeds(plan, target.sampler), plan.num_outputs, num_drafts)),
    )


def _draft_seeds(plan: StepPlan, sampler: Sampler) -> NDArray[np.uint64]:
    """Seeds [R] of the noise that drafts are drawn with.

    Rows that promised no tokens draw afresh in every step. A budget knows the confidence of earlier steps, and that
    knows their drafts: with the same noise a place would be drafted again as the budget knows it.
    """
    settings = sampler.settings
    seeds = settings.seeds[plan.rows]
    return np.where(settings.seeded[plan.rows], seeds, seeds_of_step(seeds, plan.step))


def _keys(make: "_MakeKeys", seeds: NDArray[np.uint64], num_outputs: Int32, count: int) -> NDArray[np.int32]:
    """Keys [R, count, 2] of the next `count` output tokens of rows with `seeds` [R]."""
    indices = num_outputs[:, None] + np.arange(count, dtype=np.int32)
    keys = make(np.repeat(seeds, count), indices.reshape(-1).astype(np.int32))
    return keys.reshape(len(seeds), count, 2)


class _MakeKeys(Protocol):
    def __call__(self, seeds: NDArray[np.uint64], indices: Int32, /) -> NDArray[np.int32]: ...


def _judge(target: Target, plan: StepPlan, block: Block, hidden: Tensor) -> _Judged:
    """What the rows of the wide plan say, from the hidden states of all its tokens."""
    place, sampler, drafts, windows = target.place, target.sampler, block.proposal.token_ids, block.windows
    owners = np.repeat(np.arange(plan.num_rows), plan.widths)
    places = np.arange(plan.num_tokens) - np.repeat(np.cumsum(plan.widths) - plan.widths, plan.widths)
    logits = target.logits(hidden)
    scored = np.flatnonzero(sampler.settings.needs[plan.rows[owners]] & Needs.LOGPROBS)
    logprobs = log_probabilities(logits[place(scored)]) if len(scored) else None  # before choosing changes the logits
    turn = Turn(
        plan.rows[owners],
        (plan.num_outputs[owners] + places).astype(np.int32),
        _by_token(plan, block.masks()) if plan.constrained is not None else None,
        ahead=drafts[place(owners)],
        num_ahead=place(places),
        draws=sampler.settings.seeded[plan.rows[owners]],  # for the others `_reject` does
    )
    choice = sampler.choose(logits, turn)
    own = _dense(choice.token_ids, owners, places, plan.num_rows, drafts.shape[1])
    said = _Said(acceptance.match(own, drafts, place(windows)), own)
    for free in _draw_freely(sampler, plan.rows):
        said = _reject(target, plan, block, logits, said, free)
    outputs, counts = of_first(sampler.group, said.outputs, said.counts)
    host_counts = counts.cpu().numpy().astype(np.int32) + 1
    usable = np.ones(plan.num_rows, np.bool_)
    bad = ~choice.usable.cpu().numpy() & (places < host_counts[owners])
    usable[owners[bad]] = False
    scores = None
    if logprobs is not None:
        came = places[scored] < host_counts[owners[scored]]
        scores = _scores(
            target, plan, logprobs[place(np.flatnonzero(came))], outputs, owners[scored[came]], places[scored[came]]
        )
    return _Judged(outputs, host_counts, usable, scores, owners, places, said.laws)


def _by_token(plan: StepPlan, masks: Masks) -> Masks:
    """Masks by index of the wide plan's tokens."""
    firsts = np.cumsum(plan.widths) - plan.widths
    places = 0 if masks.places is None else masks.places
    return Masks((firsts[masks.index] + places).astype(np.int32), masks.bits)


def _scores(
    target: Target,
    plan: StepPlan,
    logprobs: Tensor,
    outputs: Tensor,
    owners: NDArray[np.int64],
    places: NDArray[np.int64],
) -> Scores:
    options: Sequence[int] = plan.rows[owners].tolist()
    positions = Positions(owners.tolist(), [target.sampler.settings.logprobs[row] for row in options])
    return score(logprobs, outputs[target.place(owners), target.place(places)], positions, target.place)


def _dense(
    flat: Tensor, owners: NDArray[np.int64], places: NDArray[np.int64], num_rows: int, num_drafts: int
) -> Tensor:
    dense = torch.full((num_rows, num_drafts + 1), -1, dtype=flat.dtype, device=flat.device)
    dense[torch.from_numpy(owners).to(flat.device), torch.from_numpy(places).to(flat.device)] = flat
    return dense


def _draw_freely(sampler: Sampler, rows: Int32) -> Iterator[NDArray[np.int64]]:
    """Rows that sample and promised nothing about which tokens they draw: those without top-k and top-p, and others."""
    needs = sampler.settings.needs[rows]
    free = (needs & Needs.RANDOM).astype(bool) & ~sampler.settings.seeded[rows]
    filtered = (needs & Needs.FILTERS).astype(bool)
    for some in (free & ~filtered, free & filtered):
        if some.any():
            yield np.flatnonzero(some)


def _reject(
    target: Target,
    plan: StepPlan,
    block: Block,
    logits: Tensor,
    before: _Said,
    free: NDArray[np.int64],
) -> _Said:
    """Replaces what the rows `free` accept and say by rejection sampling from their edited logits."""
    place, sampler = target.place, target.sampler
    proposal, windows = block.proposal, block.windows
    firsts = np.cumsum(plan.widths) - plan.widths
    width = proposal.token_ids.shape[1] + 1
    # Places beyond a row's window repeat its last: nothing reads them.
    at = firsts[free][:, None] + np.minimum(np.arange(width), windows[free][:, None])
    rows = np.repeat(plan.rows[free], width)
    num_outputs = np.repeat(plan.num_outputs[free], width)
    filtered = bool(sampler.settings.needs[plan.rows[free[0]]] & Needs.FILTERS)  # all are of one kind
    draws = sampler.draws(rows, num_outputs)
    chances = acceptance.probabilities(logits[place(at.reshape(-1))], draws, filtered=filtered)
    where = place(free)
    drafts = proposal.token_ids[where]
    proposed = None
    if proposal.logits is not None:
        heat = place(sampler.settings.temperature[plan.rows[free]])
        proposed = (proposal.logits[where] / heat[:, None, None]).softmax(dim=2)
    keys = place(_keys(other_keys, sampler.settings.seeds[plan.rows[free]], plan.num_outputs[free], width))
    law = Law(free.tolist(), chances.view(len(free), width, -1), proposed)
    accepted, last = acceptance.reject(law.target, proposed, drafts, place(windows[free]), keys)
    said = torch.cat((drafts, drafts[:, :1]), dim=1)
    said[torch.arange(len(free)), accepted] = last
    counts, outputs = before.counts.clone(), before.outputs.clone()
    counts[where], outputs[where] = accepted, said
    return _Said(counts, outputs, [*before.laws, law])
