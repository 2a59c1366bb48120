"""A decode step of one tier, as a CUDA graph holds it: from staged numbers to tokens on their way to the host."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from torch import Tensor

from corymb.cache.writes import StateWrites
from corymb.kernels import triton_steps
from corymb.kernels.attention import Attention, GraphAttention, KVLayer, RaggedLayout
from corymb.kernels.sampling import Choice, Sampling
from corymb.kernels.triton_jit import Launch
from corymb.models.cuda_records import DeviceRecords
from corymb.models.cuda_staging import Shape, Staged, Staging, Wide, layout_of
from corymb.models.features import Capture
from corymb.models.host_pools import HostPools
from corymb.models.model import Batch, Model, ScoringModel
from corymb.models.rows import Rows
from corymb.models.sampler import Sampler
from corymb.models.speculation import DeviceSpeculator
from corymb.models.states import StatePools
from corymb.scheduler.plan import StepPlan


@dataclass(frozen=True, slots=True)
class Parts:
    """What a runner is made of."""

    model: Model
    attention: Attention
    kv: Sequence[KVLayer]
    rows: Rows
    sampler: Sampler
    sampling: Sampling
    launch: Launch
    states: StatePools | None = None  # of a model that has `state_specs`
    host: HostPools | None = None  # of a cache with a second tier
    speculator: DeviceSpeculator | None = None  # of a server that drafts
    records: DeviceRecords | None = None  # of such a server and a model with states

    def batch(
        self,
        wide: Wide,
        layout: RaggedLayout,
        attention: Attention,
        wanted: Tensor | None = None,
        capture: Capture | None = None,
    ) -> Batch:
        """A step as the model sees it."""
        return Batch(
            token_ids=wide.token_ids,
            positions=wide.positions,
            layout=layout,
            attention=attention,
            kv=self.kv,
            prompts=self.rows.prompts,
            wanted=wanted,
            states=self.states.tensors if self.states else (),
            capture=capture,
        )


class Decode:
    """One tier's step. Greedy: where rows want more, they are sampled anew from `logits` after the replay."""

    def __init__(self, parts: Parts, staging: Staging, reported: Tensor, tier: int) -> None:
        self._parts = parts
        self._staging = staging
        self._reported = reported
        self._shape = Shape(tier, tier)
        self._staged = staging.staged(self._shape)
        self._wide = staging.wide(self._shape)
        self._batch: Batch | None = None
        assert isinstance(parts.model, ScoringModel), "graphs leave scores for whoever samples"
        assert isinstance(parts.attention, GraphAttention), "graphs need a back end that can be captured"
        self._attention = parts.attention
        self._model = parts.model
        self._scores: Tensor | None = None

    def logits(self, num_rows: int) -> Tensor:
        """Float32 [num_rows, V] of the last replay."""
        assert self._scores is not None, "the tier was never captured"
        return self._model.finish(self._scores[:num_rows])

    def plan(self, plan: StepPlan) -> None:
        """Queues what the graph needs before its replay."""
        self._staging.put(plan, self._shape)
        rows = self._parts.rows
        layout = layout_of(plan, self._staged, self._wide, table=rows.table, full_to_sliding=rows.full_to_sliding)
        self._attention.plan_graph(layout)
        self._batch = self._parts.batch(self._wide, layout, self._attention)

    def prepare(self) -> None:
        """See cuda_graphs.Step: padding rows only."""
        self.plan(padding_plan())

    def run(self) -> None:
        """See cuda_graphs.Step."""
        assert self._batch is not None, "plan comes before run"
        self._attention.plan_captured()
        begin(self._parts, self._staged, self._wide)
        self._scores = self._model.head(self._parts.model.forward(self._batch))
        choice = self._model.vocabulary.greedy(self._scores, self._parts.sampling)
        end(self._parts, choice, self._staged.target_rows, self._reported)


def begin(parts: Parts, staged: Staged, wide: Wide) -> None:
    """Queues what comes before a forward."""
    rows = parts.rows
    triton_steps.begin(
        (staged.token_ids, staged.token_rows, staged.positions, staged.slots),
        (wide.token_ids, wide.positions, wide.slots, wide.sliding_slots),
        rows.last_sampled,
        rows.table,
        rows.full_to_sliding,
        launch=parts.launch,
    )


def end(parts: Parts, choice: Choice, target_rows: Tensor, reported: Tensor) -> None:
    """Queues what comes after a choice: each row's token is remembered and reported."""
    triton_steps.end(
        choice.token_ids, choice.usable, target_rows, parts.rows.last_sampled, reported, launch=parts.launch
    )


def padding_plan() -> StepPlan:
    """A step that changes nothing: one token of nobody's row."""
    zero = np.zeros(1, np.int32)
    return StepPlan(
        step=0,
        rows=zero,
        widths=np.ones(1, np.int32),
        starts=zero,
        token_ids=zero,
        slots=zero,
        samples=np.zeros(1, np.bool_),
        num_outputs=zero,
        states=StateWrites.only(zero),
    )
