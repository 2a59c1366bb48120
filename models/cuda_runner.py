"""Runs plans on a GPU: everything is queued at once, and only `wait` waits."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from corymb.cache.writes import HostCopies
from corymb.kernels.attention import RaggedLayout
from corymb.models import prompt_logprobs
from corymb.models.cuda_copies import CudaCopies
from corymb.models.cuda_decode import Decode, Parts, begin, end
from corymb.models.cuda_device import Device, Mark
from corymb.models.cuda_graphs import Graphs
from corymb.models.cuda_prefill import Prefills
from corymb.models.cuda_speculation import Speculating, SpeculativeStep
from corymb.models.cuda_staging import Shape, Staging, layout_of
from corymb.models.execution import UNUSABLE, among
from corymb.models.features import Capture
from corymb.models.logprobs import Positions, Scores, entries, log_probabilities, score
from corymb.models.placement import Place
from corymb.models.pooling import Pooled, pool
from corymb.models.sampler import Turn
from corymb.models.settings import Needs
from corymb.models.speculation import Seen
from corymb.scheduler.messages import Logprob
from corymb.scheduler.plan import Masks, Sampled, StepPlan

NUM_RESULTS = 4  # steps whose results may be unread; a loop keeps two in flight at most
Index = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Forwarded:
    """What a queued forward leaves behind, until the next step is queued."""

    index: Index  # [N], the plan's rows that sample
    logits: Tensor | None  # float32 [N, V]; None where the tokens are chosen already
    prompt_scores: Sequence[Scores] = ()
    pooled: Pooled | None = None


@dataclass(frozen=True, slots=True)
class Reported:
    """What a queued step leaves behind."""

    places: Index  # [N] of the rows that sample, in the tokens that the step reports
    scores: Scores | None = None
    prompt_scores: Sequence[Scores] = field(default_factory=tuple)
    pooled: Pooled | None = None

    def on_host(self) -> "Reported":
        """Queues copies of the scores to the host."""
        scores = None if self.scores is None else self.scores.on_host()
        pooled = None if self.pooled is None else self.pooled.on_host()
        return Reported(self.places, scores, [one.on_host() for one in self.prompt_scores], pooled)


@dataclass(frozen=True, slots=True)
class Returned:
    """What a step sends to the host."""

    reported: Reported
    tokens: Tensor  # int32, as `triton_steps.end` writes them
    done: Mark  # passed when all of it has arrived


class CudaStep:
    """A step whose forward is queued, and its sampling too unless rows wait for masks."""

    def __init__(
        self, plan: StepPlan, begun: Mark, finish: Callable[[Masks | None], Returned], copies: CudaCopies | None
    ) -> None:
        """`finish` queues the sampling and the way back to the host."""
        self._plan = plan
        self._begun = begun
        self._copies = copies
        self._finish = finish
        self._returned = finish(None) if plan.constrained is None else None

    def drafts(self) -> None:
        """Nothing drafts here."""

    def constrain(self, masks: Masks) -> None:
        """Queues the sampling, behind the forward that runs meanwhile."""
        self._returned = self._finish(masks)

    def wait(self) -> Sampled:
        """Blocks until the step's samples are on the host."""
        returned = self._returned
        assert returned is not None, "rows of the step still wait for their masks"
        returned.done.synchronize()
        reported = returned.reported
        results = returned.tokens.numpy()[reported.places]
        failed = prompt_logprobs.unusable(reported.prompt_scores)
        failed |= set(np.flatnonzero(self._plan.samples)[results < 0].tolist())
        prompt_entries: dict[int, list[Logprob]] = {}
        for scores in reported.prompt_scores:
            for owner, more in entries(scores).items():
                prompt_entries.setdefault(owner, []).extend(more)
        return Sampled(
            token_ids=np.where(results < 0, -1 - results, results),
            counts=self._plan.samples.astype(np.int32),
            forward_s=returned.done.seconds_since(self._begun),
            logprobs=entries(reported.scores) if reported.scores else {},
            prompt_logprobs=prompt_entries,
            embeddings=reported.pooled.read() if reported.pooled else {},
            errors=dict.fromkeys(sorted(failed), UNUSABLE),
            copied=self._copies.num_done if self._copies else None,
        )


class CudaRunner:
    """Owns the order of the device's work. `launch` must be called from one thread; it never waits for the device."""

    def __init__(
        self,
        parts: Parts,
        device: Device,
        *,
        max_tokens: int,
        graph_tiers: Sequence[int],
        prefill_tiers: Sequence[int] = (),
    ) -> None:
        """Captures steps of rows that decode of `graph_tiers` and other steps of `prefill_tiers`; `max_tokens` bounds a
        step."""
        self.parts = parts
        self._device = device
        self._place = Place(device.device)
        most_rows = max([len(parts.rows.last_sampled), *graph_tiers])
        sliding = parts.rows.full_to_sliding is not None
        most_tokens = max([max_tokens, most_rows, *prefill_tiers])
        self._staging = Staging(device, max_rows=most_rows, max_tokens=most_tokens, sliding=sliding)
        self._reported = torch.zeros(most_rows, dtype=torch.int32, device=device.device)
        self._results = [device.pinned(most_rows) for _ in range(NUM_RESULTS)]
        self._turn = 0
        self._copies = CudaCopies(parts.host, device) if parts.host else None
        self._speculating: Speculating | None = None
        if parts.speculator:
            speculating = Speculating(parts, parts.speculator, device, graph_tiers, self._copies)
            self._speculating, graph_tiers = speculating, ()
        self._decodes = {tier: Decode(parts, self._staging, self._reported, tier) for tier in graph_tiers}
        with torch.inference_mode():
            self._prefills = Prefills(parts, device, self._staging, prefill_tiers)
            self._graphs = Graphs(device, graph_tiers, self._decodes.__getitem__)

    @torch.inference_mode()
    def launch(self, plan: StepPlan) -> CudaStep | SpeculativeStep:
        """Queues one step behind those launched before."""
        begun = self._device.mark()
        begun.record()
        if self._copies:
            self._copies.queue(plan.copies)
        self.parts.rows.apply(plan)
        for opened in plan.opened:
            self.parts.sampler.open(opened)
            if self.parts.speculator:
                self.parts.speculator.drafter.open(opened)
        if plan.windows is not None:
            assert self._speculating is not None, "a plan with windows for a runner that does not draft"
            return self._speculating.launch(plan, begun)
        states, writes = self.parts.states, plan.states
        assert states is None or writes is not None, "a plan without states for a model that has some"
        if states and writes:
            states.before(writes)
        tier = self._tier(plan)
        forwarded = self._ragged(plan) if tier is None else self._decode(plan, tier)
        if states and writes:
            states.after(writes)
        return CudaStep(plan, begun, lambda masks: self._finish(plan, forwarded, masks), self._copies)

    @torch.inference_mode()
    def copy(self, copies: HostCopies) -> None:
        """Does copies that belong to no step, behind those launched before."""
        assert self._copies, "copies for a cache without a second tier"
        self._copies.queue(copies)
        self._device.synchronize()

    def close(self) -> None:
        """Waits for what is in flight."""
        self._device.synchronize()

    @torch.inference_mode()
    def _finish(self, plan: StepPlan, forwarded: Forwarded, masks: Masks | None) -> Returned:
        """Queues what follows a step's forward."""
        reported = self._report(plan, forwarded, masks).on_host()
        results, done = self._results[self._turn], self._device.mark()
        self._turn = (self._turn + 1) % NUM_RESULTS
        results[: plan.num_rows].copy_(self._reported[: plan.num_rows], non_blocking=True)
        done.record()
        return Returned(reported, results, done)

    def _report(self, plan: StepPlan, forwarded: Forwarded, masks: Masks | None) -> Reported:
        index, prompts = forwarded.index, forwarded.prompt_scores
        if forwarded.logits is None:
            return Reported(index, None, prompts)
        scores = self._sample(forwarded.logits, plan, index, masks)
        return Reported(np.arange(len(index)), scores, prompts, forwarded.pooled)

    def _tier(self, plan: StepPlan) -> int | None:
        """Graphs compute steps of one-token rows, all of whose logits are wanted."""
        if plan.num_rows != plan.num_tokens or plan.prompt_logprobs_from is not None:
            return None
        if (self.parts.sampler.settings.needs[plan.rows] & Needs.EMBEDDING).any():
            return None  # graphs keep no hidden states
        return self._graphs.fit(plan.num_tokens)

    def _decode(self, plan: StepPlan, tier: int) -> Forwarded:
        decode = self._decodes[tier]
        decode.plan(plan)
        self._graphs.replay(tier)
        index = np.flatnonzero(plan.samples)
        settings = self.parts.sampler.settings
        if plan.constrained is None and not settings.required(plan.rows[index], plan.num_outputs[index]).any():
            return Forwarded(index, None)  # the graph's own greedy tokens are right
        logits = decode.logits(plan.num_rows)
        return Forwarded(index, logits if len(index) == plan.num_rows else logits[self._place(index)])

    def _ragged(self, plan: StepPlan) -> Forwarded:
        parts, shape = self.parts, Shape(plan.num_rows, plan.num_tokens)
        self._staging.put(plan, shape)
        staged, wide = self._staging.staged(shape), self._staging.wide(shape)
        rows = parts.rows
        layout = layout_of(plan, staged, wide, table=rows.table, full_to_sliding=rows.full_to_sliding)
        parts.attention.plan(layout)
        begin(parts, staged, wide)
        index = np.flatnonzero(plan.samples)
        found = prompt_logprobs.find(plan, rows, parts.sampler.settings)
        last = self._place(np.cumsum(plan.widths)[index] - 1)
        prefill = None if found else self._prefills.fit(plan.num_tokens, len(last))
        if prefill:
            hidden, capture = prefill.run(plan.num_tokens, last), self._prefills.capture
        else:
            wanted, speculator = None if found else last, parts.speculator
            capture = speculator.drafter.capture(plan.num_tokens) if speculator else None
            hidden = parts.model.forward(parts.batch(wide, layout, parts.attention, wanted, capture))
        self._observe(plan, layout, wide.token_ids, capture)
        prompts = prompt_logprobs.score_prompts(hidden, found, parts.model.logits, self._place) if found else ()
        if not len(index):
            return Forwarded(index, None, prompts)
        chosen = hidden if len(hidden) == len(index) else hidden[last]
        pooled = pool(chosen, index, parts.sampler.settings.needs[plan.rows[index]], self._place)
        return Forwarded(index, parts.model.logits(chosen), prompts, pooled)

    def _observe(self, plan: StepPlan, layout: RaggedLayout, token_ids: Tensor, capture: Capture | None) -> None:
        """Tells whoever drafts of prompts."""
        if self.parts.speculator is None:
            return
        self.parts.rows.lengths[self._place(plan.rows)] = self._place(plan.starts + plan.widths)
        if self.parts.records:
            self.parts.records.pass_over(plan)
        features = capture.into[: plan.num_tokens] if capture else None
        self.parts.speculator.drafter.observe(Seen(layout, token_ids, features, None))

    def _sample(self, logits: Tensor, plan: StepPlan, index: Index, masks: Masks | None) -> Scores | None:
        """Chooses the tokens of the plan's rows at `index` [N] from their logits [N, V]."""
        parts, rows = self.parts, plan.rows[index]
        wanted = np.flatnonzero(parts.sampler.settings.needs[rows] & Needs.LOGPROBS)
        # Before choosing: it changes the logits.
        logprobs = log_probabilities(logits[self._place(wanted)]) if len(wanted) else None
        among_rows = None if masks is None else among(index, masks)
        choice = parts.sampler.choose(logits, Turn(rows, plan.num_outputs[index], among_rows))
        end(parts, choice, self._place(rows), self._reported)
        if logprobs is None:
            return None
        options = [parts.sampler.settings.logprobs[row] for row in rows[wanted].tolist()]
        positions = Positions(index[wanted].tolist(), options)
        return score(logprobs, choice.token_ids[self._place(wanted)], positions, self._place)
