"""Drafts of a GPU's rows: up to the next number of rows captured, where what drafts never asks the host."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from corymb.kernels.standing import Standing
from corymb.models.cuda_graphs import Graphs
from corymb.models.placement import Place
from corymb.models.rows import Rows
from corymb.models.speculation import Drafter, DraftTurn, Proposal, Tools
from corymb.scheduler.plan import StepPlan

Index = NDArray[np.int64]


class Proposals:
    """Owns the captured graphs: for each number of rows one of greedy rows, and one where some are not."""

    def __init__(self, drafter: Drafter, rows: Rows, room: Standing, tools: Tools, *, captures: bool) -> None:
        """Rows are read from `room`."""
        self._drafter = drafter
        self._rows = rows
        tiers = tools.row_tiers if captures else ()
        self._place = Place(tools.device.device)
        kept = Kept()
        self._steps = {
            (tier, random): ProposalStep(drafter, _every(rows, room.first(tier), random=random), kept)
            for tier in tiers
            for random in (False, True)
        }
        with torch.inference_mode():
            self._graphs = {random: self._captured(tools, tiers, random=random) for random in (True, False)}

    def fit(self, num_rows: int) -> int:
        """How many rows a step of so many is filled up to."""
        return self._graphs[False].fit(num_rows) or num_rows

    def propose(self, plan: StepPlan, standing: Standing, random: Index, farthest: int) -> Proposal:
        """Drafts of a plan's rows, behind which padding may stand. `random`: the indices of rows that do not want their
        likeliest token; `farthest`: see DraftTurn."""
        tier, count = len(standing.rows), plan.num_rows
        step = self._steps.get((tier, len(random) > 0))
        if step is None:
            turn = _turn(self._rows, standing.first(count), self._place(random), farthest)
            return self._drafter.propose(replace(turn, host_rows=plan.rows))
        self._graphs[len(random) > 0].replay(tier)
        return step.proposal(count)

    def _captured(self, tools: Tools, tiers: Sequence[int], *, random: bool) -> Graphs:
        return Graphs(tools.device, tiers, lambda tier: self._steps[tier, random])


class Kept:
    """Keeps the last proposal: graphs share their memory, and the target's runs before all of a proposal is read. Made
    for the largest, which come first."""

    def __init__(self) -> None:
        self._memory: dict[str, Tensor] = {}

    def keep(self, proposal: Proposal) -> Proposal:
        """A copy, in memory that is always the same."""
        counts, logits, confidence = proposal.counts, proposal.logits, proposal.confidence
        return Proposal(
            self._copy("token_ids", proposal.token_ids),
            counts=None if counts is None else self._copy("counts", counts),
            logits=None if logits is None else self._copy("logits", logits),
            confidence=None if confidence is None else self._copy("confidence", confidence),
        )

    def _copy(self, name: str, tensor: Tensor) -> Tensor:
        if name not in self._memory:
            self._memory[name] = torch.empty_like(tensor)
        return self._memory[name][: len(tensor)].copy_(tensor)


class ProposalStep:
    """One graph's work. See cuda_graphs.Step."""

    def __init__(self, drafter: Drafter, turn: DraftTurn, kept: Kept) -> None:
        self._drafter = drafter
        self._turn = turn
        self._kept = kept
        self._proposal: Proposal | None = None

    def proposal(self, num_rows: int) -> Proposal:
        """The first rows of the last run."""
        proposal = self._proposal
        assert proposal is not None, "it never ran"
        counts, logits, confidence = proposal.counts, proposal.logits, proposal.confidence
        return Proposal(
            proposal.token_ids[:num_rows],
            counts=None if counts is None else counts[:num_rows],
            logits=None if logits is None else logits[:num_rows],
            confidence=None if confidence is None else confidence[:num_rows],
        )

    def prepare(self) -> None:
        """The memory holds rows of the padding from the start."""

    def run(self) -> None:
        """Drafts."""
        self._proposal = self._kept.keep(self._drafter.propose(self._turn))


def _every(rows: Rows, standing: Standing, *, random: bool) -> DraftTurn:
    """A turn for any rows: if `random`, each may want another than its likeliest token, or not."""
    indices = torch.arange(len(standing.rows) if random else 0, device=standing.rows.device)
    return _turn(rows, standing, indices, rows.table.shape[1])


def _turn(rows: Rows, standing: Standing, random: Tensor, farthest: int) -> DraftTurn:
    return DraftTurn(
        host_rows=np.zeros(len(standing.rows), np.int32),
        farthest=farthest,
        rows=standing.rows,
        most=np.zeros(len(standing.rows), np.int32),
        limits=standing.most,
        anchors=standing.anchors,
        lengths=standing.lengths,
        table=rows.table,
        full_to_sliding=rows.full_to_sliding,
        temperature=standing.temperature,
        random=random,
        keys=standing.keys,
    )
