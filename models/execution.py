"""One step on the device: from a plan to samples that are still there, and from those to the host."""

import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from corymb.cache.writes import HostCopies
from corymb.kernels.attention import Attention, KVLayer
from corymb.kernels.sampling import Choice
from corymb.models import prompt_logprobs
from corymb.models.batch import build_layout, gather_tokens
from corymb.models.host_pools import HostPools
from corymb.models.locating import locate
from corymb.models.logprobs import Positions, Scores, entries, log_probabilities, score
from corymb.models.model import Batch, Model
from corymb.models.placement import Place
from corymb.models.pooling import Pooled, pool
from corymb.models.records import Replay
from corymb.models.rows import Rows
from corymb.models.sampler import Index, Sampler, Turn
from corymb.models.settings import Needs
from corymb.models.speculation import AskMasks, Computed, Readable, Seen, Speculator
from corymb.models.states import StatePools
from corymb.scheduler.messages import Logprob
from corymb.scheduler.plan import Bool, Drafts, Int32, Masks, Sampled, StepPlan

UNUSABLE = "The model's output holds NaN or infinite values for this request."


class NoMasks:
    """For steps without constrained rows."""

    def offer(self, drafts: Drafts) -> None:
        """See AskMasks."""
        raise AssertionError(f"nobody follows the {len(drafts.counts)} rows")

    def __call__(self) -> Masks:
        """See AskMasks."""
        raise AssertionError("no row of the step waits for a mask")


NO_MASKS = NoMasks()


class TimedMasks:
    """Masks from somewhere else, and how long they were waited for: that is no time of the device."""

    def __init__(self, masks: AskMasks) -> None:
        self._masks = masks
        self.waited_s = 0.0

    def offer(self, drafts: Drafts) -> None:
        """See AskMasks."""
        self._masks.offer(drafts)

    def __call__(self) -> Masks:
        """See AskMasks."""
        started_s = time.perf_counter()
        masks = self._masks()
        self.waited_s += time.perf_counter() - started_s
        return masks


@dataclass(frozen=True, slots=True)
class DeviceSamples:
    """What a step gave, before anybody waits for the device."""

    samples: Bool  # [R] of the plan
    choice: Choice | None  # of the rows that sample, in order; None where none does
    scores: Scores | None
    prompt_scores: Sequence[Scores]
    pooled: Pooled | None
    forward_s: float

    def read(self) -> Sampled:
        """Waits for the device and puts the samples on the host."""
        counts = self.samples.astype(np.int32)
        prompt_entries: dict[int, list[Logprob]] = {}
        for scores in self.prompt_scores:
            for owner, more in entries(scores).items():
                prompt_entries.setdefault(owner, []).extend(more)
        return Sampled(
            token_ids=_host_tokens(self.choice),
            counts=counts,
            forward_s=self.forward_s,
            logprobs=entries(self.scores) if self.scores else {},
            prompt_logprobs=prompt_entries,
            embeddings=self.pooled.read() if self.pooled else {},
            errors=dict.fromkeys(sorted(self._unusable()), UNUSABLE),
        )

    def _unusable(self) -> set[int]:
        failed = prompt_logprobs.unusable(self.prompt_scores)
        if self.choice is None or bool(self.choice.usable.all()):
            return failed
        sampling = np.flatnonzero(self.samples)
        return failed | set(sampling[~self.choice.usable.cpu().numpy()].tolist())


class Execution:
    """Owns a model, its pools and all device state by row; runs plans in their order. Not thread-safe."""

    def __init__(
        self,
        model: Model,
        attention: Attention,
        kv: Sequence[KVLayer],
        rows: Rows,
        sampler: Sampler,
        *,
        states: StatePools | None = None,
        host: HostPools | None = None,
        speculator: Speculator | None = None,
    ) -> None:
        """`states`: of a model that has `state_specs`; `host`: of a cache with a second tier; `speculator`: of a server
        that drafts."""
        self._model = model
        self._attention = attention
        self._kv = kv
        self._states = states
        self.host = host
        self._speculator = speculator
        self.rows = rows
        self.sampler = sampler
        self.place = Place(rows.last_sampled.device)

    @torch.inference_mode()
    def run(self, plan: StepPlan, masks: AskMasks = NO_MASKS) -> Readable:
        """Runs one step. Waits for the `masks` of its constrained rows when nothing else is left to compute."""
        started_s, timed = time.perf_counter(), TimedMasks(masks)
        self.copy(plan.copies)
        self.rows.apply(plan)
        for opened in plan.opened:
            self.sampler.open(opened)
            if self._speculator:
                self._speculator.drafter.open(opened)
        if plan.windows is not None:
            assert self._speculator is not None, "a plan with windows for a runner that does not draft"
            drafts = bool(plan.windows.most.any())
            plan = locate(plan, self.rows)
            if drafts:
                return self._speculator.run(plan, masks, self)
        computed = self.compute(plan)
        hidden = computed.hidden
        if self._speculator:
            self.rows.lengths[self.place(plan.rows)] = self.place(plan.starts + plan.widths)
            self._speculator.drafter.observe(Seen(computed.layout, computed.token_ids, computed.features, None))
        index = np.flatnonzero(plan.samples)
        last = _last_of_rows(hidden, plan, self.place(index))
        pooled = pool(last, index, self.sampler.settings.needs[plan.rows[index]], self.place)
        choice, scores = self._sample(last, plan, index, timed)
        found = prompt_logprobs.find(plan, self.rows, self.sampler.settings)
        prompt_scores = prompt_logprobs.score_prompts(hidden, found, self._model.logits, self.place) if found else []
        forward_s = time.perf_counter() - started_s - timed.waited_s
        return DeviceSamples(plan.samples, choice, scores, prompt_scores, pooled, forward_s)

    @torch.inference_mode()
    def copy(self, copies: HostCopies) -> None:
        """Moves what the cache has between the device's pools and the host's."""
        if self.host:
            self.host.copy(copies.copies)

    def compute(self, plan: StepPlan) -> Computed:
        """See Target."""
        batch = self._batch(plan)
        self._attention.plan(batch.layout)
        hidden = self._forward(batch, plan)
        features = batch.capture.into if batch.capture else None
        return Computed(hidden, batch.layout, batch.token_ids, features)

    def logits(self, hidden: Tensor) -> Tensor:
        """See Target."""
        return self._model.logits(hidden)

    def _forward(self, batch: Batch, plan: StepPlan) -> Tensor:
        if self._states is None:
            return self._model.forward(batch)
        assert plan.states is not None, "a plan without states for a model that has some"
        self._states.before(plan.states)
        hidden = self._model.forward(batch)
        self._states.after(plan.states)
        return hidden

    def _batch(self, plan: StepPlan) -> Batch:
        layout = build_layout(plan, self.rows, self.place)
        replay = self._replay(plan)
        return Batch(
            token_ids=gather_tokens(plan, layout, self.rows, self.place),
            positions=layout.positions,
            layout=layout,
            attention=self._attention,
            kv=self._kv,
            prompts=self.rows.prompts,
            states=self._states.tensors if self._states else (),
            capture=self._speculator.drafter.capture(plan.num_tokens) if self._speculator else None,
            replay=replay,
        )

    def _replay(self, plan: StepPlan) -> Replay | None:
        records = self._states.records if self._states else None
        if records is None or plan.states is None:
            return None
        if plan.states.landmarks is None:
            records.pass_over(plan)
            return None
        return records.open(plan, plan.states.landmarks, self.rows)

    def _sample(
        self, hidden: Tensor, plan: StepPlan, index: Index, masks: AskMasks
    ) -> tuple[Choice | None, Scores | None]:
        """Chooses the next token of the plan's rows at `index`, from their hidden states, and remembers it for the next
        step."""
        if not len(index):
            return None, None
        rows = plan.rows[index]
        logits = self._model.logits(hidden)
        wanted = np.flatnonzero(self.sampler.settings.needs[rows] & Needs.LOGPROBS)
        # Before choosing: it changes the logits.
        logprobs = log_probabilities(logits[self.place(wanted)]) if len(wanted) else None
        found = None if plan.constrained is None else among(index, masks())
        choice = self.sampler.choose(logits, Turn(rows, plan.num_outputs[index], found))
        self.rows.last_sampled[self.place(rows)] = choice.token_ids
        if logprobs is None:
            return choice, None
        positions = Positions(
            index[wanted].tolist(), [self.sampler.settings.logprobs[row] for row in rows[wanted].tolist()]
        )
        return choice, score(logprobs, choice.token_ids[self.place(wanted)], positions, self.place)


def among(index: NDArray[np.int64], masks: Masks) -> Masks:
    """The masks of the plan's rows at `index`, which is sorted and holds all of them, counted by place in it."""
    return Masks(np.searchsorted(index, masks.index).astype(np.int32), masks.bits)


def _last_of_rows(hidden: Tensor, plan: StepPlan, index: Tensor) -> Tensor:
    """The hidden states of the last tokens of the plan's rows at `index`."""
    if len(index) == plan.num_tokens:
        return hidden
    last = np.cumsum(plan.widths) - 1
    return hidden[torch.from_numpy(last).to(index.device)[index]]


def _host_tokens(choice: Choice | None) -> Int32:
    if choice is None:
        return np.empty(0, np.int32)
    return choice.token_ids.to("cpu", torch.int32).numpy()
