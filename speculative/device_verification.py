"""Drafts of a step on a GPU, and what the target makes of them: everything is queued, and nobody waits for lengths."""

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from corymb.kernels.packing import Windows
from corymb.kernels.settling import Drafted, Said, Settle, Settled, commit, tabulate
from corymb.kernels.standing import Standing
from corymb.models.group import of_first
from corymb.models.speculation import DeviceOutputs, DeviceTarget, Drafter, Proposal, Tools, Verified
from corymb.scheduler.plan import Masks, StepPlan
from corymb.speculative.device_choosing import Chooser, special_rows
from corymb.speculative.device_proposals import Proposals
from corymb.speculative.device_turns import Turns, is_random
from corymb.speculative.verification import Allotment, WholeBlocks


class DeviceVerification:
    """See DeviceSpeculator. Of several ranks all draft and verify; what is verified and accepted, rank 0 decides."""

    def __init__(self, drafter: Drafter, allotment: Allotment | None, tools: Tools, *, captures: bool = True) -> None:
        """`captures`: whether what drafts never asks the host."""
        self.drafter = drafter
        self._allotment = allotment or WholeBlocks()
        self._tools = tools
        self._captures = captures
        self._turns: Turns | None = None
        self._proposals: Proposals | None = None

    def begin(self, target: DeviceTarget) -> None:
        """See DeviceSpeculator."""
        num_rows = len(target.rows.last_sampled)
        self._turns = Turns(num_rows, self.drafter.num_drafts, self._tools)
        self._proposals = Proposals(self.drafter, target.rows, self._turns.room, self._tools, captures=self._captures)

    def draft(self, plan: StepPlan, target: DeviceTarget, drafted: Callable[[], None]) -> "DeviceBlock":
        """See DeviceSpeculator."""
        assert plan.windows is not None, "only plans with windows draft"
        assert self._turns is not None, "begin comes before draft"
        assert self._proposals is not None, "begin comes before draft"
        drafts = bool(plan.windows.most.any())
        num_rows = self._proposals.fit(plan.num_rows) if drafts else plan.num_rows
        padded = self._turns.put(plan, target.rows, target.sampler, num_rows)
        standing = padded.first(plan.num_rows)
        proposal = Proposal(standing.rows.new_zeros(plan.num_rows, 0))
        most = windows = verified = standing.most
        if drafts:
            random = np.flatnonzero(is_random(plan, target.sampler))
            proposal = self._proposals.propose(plan, padded, random, _farthest(plan))
            if proposal.counts is not None:
                most = torch.minimum(most, proposal.counts)
            windows = self._allotment.allot_on_device(proposal, most, plan.windows.budget, self._tools.allot)
            token_ids, most, windows = of_first(target.sampler.group, proposal.token_ids, most, windows)
            proposal = replace(proposal, token_ids=token_ids)
            verified = most if self._allotment.checks_all else windows
        drafted()
        packing = Windows(standing.rows, standing.lengths, 1 + verified, standing.anchors, proposal.token_ids)
        computed = target.verify(packing, self._num_tokens(plan))
        made = Drafted(proposal.token_ids, windows, verified, proposal.confidence)
        return DeviceBlock(plan, target, self.drafter, self._tools.settle, standing, made, proposal.logits, computed)

    def _num_tokens(self, plan: StepPlan) -> int:
        """The most that a step verifies."""
        assert plan.windows is not None, "only plans with windows draft"
        most, budget = int(plan.windows.most.sum()), plan.windows.budget
        return plan.num_rows + (most if budget is None or self._allotment.checks_all else min(most, budget))


def _farthest(plan: StepPlan) -> int:
    """Slots are reserved as far as a row can get; the padding row needs none."""
    assert plan.windows is not None, "only plans with windows draft"
    windows = plan.windows
    return int(np.maximum(windows.slot_starts + windows.slot_counts, plan.starts + 1 + windows.most).max())


@dataclass(frozen=True, slots=True)
class DeviceBlock:
    """See Block."""

    plan: StepPlan
    target: DeviceTarget
    drafter: Drafter
    accept: Settle
    standing: Standing
    drafted: Drafted
    logits: Tensor | None  # of the drafts
    verified: Verified

    @property
    def token_ids(self) -> Tensor | None:
        """See Block."""
        return self.drafted.token_ids if self.drafted.token_ids.shape[1] else None

    @property
    def windows(self) -> Tensor:
        """See Block."""
        return self.drafted.windows

    def settle(self, masks: Masks | None) -> DeviceOutputs:
        """See Block."""
        plan, target, verified, drafted = self.plan, self.target, self.verified, self.drafted
        packed, rows = verified.packed, target.rows
        settled = Settled(rows.last_sampled, rows.lengths, verified.kept_slots)
        special, scores = special_rows(plan, target), None
        if not len(special):
            table = self.accept(verified.choice, packed, self.standing, drafted, settled)
        else:
            chooser = Chooser(plan, target, self.standing, drafted, self.logits, special)
            judged = chooser.judge(verified, masks)
            commit(judged.said, packed, self.standing, settled)
            self._say(judged.said)
            table, scores = tabulate(judged.said, drafted), judged.scores
        target.observe(verified, drafted=self.token_ids is not None)
        return DeviceOutputs(table, drafted.token_ids.shape[1], drafted.confidence is not None, scores)

    def _say(self, said: Said) -> None:
        windows = self.plan.windows
        assert windows is not None, "only plans with windows draft"
        most = windows.slot_starts + windows.slot_counts + 1
        self.target.sampler.say_runs(self.plan.rows, said.token_ids, said.counts, most)
