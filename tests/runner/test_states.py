"""Recurrent states go where a plan says, before and after its forward."""

from collections.abc import Sequence

import numpy as np
import torch
from by_hand import CPU, EOS_IDS, GREEDY, int32
from torch import Tensor

from corymb.cache.config import CacheConfig
from corymb.cache.writes import StateWrites
from corymb.kernels.attention import AttentionSpec
from corymb.models.builtin import NoAttention
from corymb.models.execution import Execution
from corymb.models.model import Batch
from corymb.models.placement import Place
from corymb.models.rows import Rows
from corymb.models.runner import CpuRunner
from corymb.models.sampler import Sampler
from corymb.models.states import StatePools, StateSpec
from corymb.models.warm_up import warm_up
from corymb.scheduler.messages import Sampling
from corymb.scheduler.plan import Opened, StepPlan


class SumModel:
    """Its state is the sum of all tokens so far, in two tensors; its next token is that sum."""

    vocab_size = 264
    attention_specs: Sequence[AttentionSpec] = ()
    state_specs = (StateSpec((1,), torch.int64), StateSpec((2, 3)))

    def forward(self, batch: Batch) -> Tensor:
        layout, (sums, copies) = batch.layout, batch.states
        parts = [part.sum() for part in batch.token_ids.split(layout.host_widths.tolist())]
        total = sums[layout.state_slots, 0] + torch.stack(parts)
        assert (copies[layout.state_slots, 1, 2].long() == sums[layout.state_slots, 0]).all(), "the two have parted"
        sums[layout.state_slots, 0] = total
        copies[layout.state_slots] = total[:, None, None].float().expand(-1, 2, 3)
        return total.repeat_interleave(torch.from_numpy(layout.host_widths).long())[:, None]

    def logits(self, hidden: Tensor) -> Tensor:
        return torch.zeros(len(hidden), self.vocab_size).scatter_(1, hidden, 5.0)


def make_runner() -> CpuRunner:
    config, place = CacheConfig(num_full_tokens=64, num_states=8, num_rows=4, context_length=16), Place(CPU)
    states = StatePools(SumModel.state_specs, config.num_states, dtype=torch.float32, place=place)
    sampler = Sampler(config.num_rows, EOS_IDS, place)
    return CpuRunner(Execution(SumModel(), NoAttention(), [], Rows(config, place), sampler, states=states))


def step(runner: CpuRunner, tokens: dict[int, list[int]], **writes: list[int]) -> list[int]:
    """Rows compute tokens, each with the working state of its own number; returns what they say next."""
    token_ids = int32([token for part in tokens.values() for token in part])
    rows, none = int32([*tokens]), int32([])
    fields = {name: int32(writes.get(name, [])) for name in StateWrites.__dataclass_fields__ if name != "slots"}
    plan = StepPlan(
        step=0,
        rows=rows,
        widths=int32([len(part) for part in tokens.values()]),
        starts=np.zeros_like(rows),
        token_ids=token_ids,
        slots=np.arange(1, 1 + len(token_ids), dtype=np.int32),
        samples=np.ones(len(rows), np.bool_),
        num_outputs=np.zeros_like(rows),
        opened=[Opened(row, none, none, Sampling(max_new_tokens=9, **GREEDY), None) for row in tokens],
        states=StateWrites(rows, **fields),
    )
    return runner.launch(plan).wait().token_ids.tolist()


def test_a_row_goes_on_from_its_own_state() -> None:
    runner = make_runner()
    assert step(runner, {1: [3, 4], 2: [50]}) == [7, 50]
    assert step(runner, {2: [1], 1: [2]}) == [51, 9]
    runner.close()


def test_a_cleared_slot_begins_at_nothing() -> None:
    runner = make_runner()
    step(runner, {1: [3], 2: [5]})
    assert step(runner, {1: [1], 2: [1]}, zero=[1]) == [1, 6]
    runner.close()


def test_a_row_may_start_from_a_copy_and_leaves_the_original() -> None:
    runner = make_runner()
    step(runner, {1: [10]}, after_from=[1], after_to=[7])
    assert step(runner, {1: [1], 2: [2], 3: [3]}, before_from=[7, 7], before_to=[2, 3]) == [11, 12, 13]
    assert step(runner, {1: [5]}, before_from=[7], before_to=[1]) == [15]
    runner.close()


def test_warming_up_touches_only_the_padding_slot() -> None:
    runner = make_runner()
    step(runner, {1: [3]})
    warm_up(runner)
    assert step(runner, {1: [4]}) == [7]
    runner.close()
