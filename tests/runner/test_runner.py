"""Plans take effect in order, whatever is in flight, and rows never meet."""

import math
from collections.abc import Sequence

import numpy as np
import pytest
import torch
from by_hand import GREEDY, Hand, Part, collect, generate, ids, int32, make_execution, request, text
from torch import Tensor

from corymb.cache.writes import TableWrites
from corymb.kernels.attention import AttentionSpec
from corymb.models.builtin import HashModel, TapeModel, UniformModel
from corymb.models.model import Batch
from corymb.models.runner import CpuRunner
from corymb.models.states import StateSpec
from corymb.scheduler.messages import Sampling
from corymb.scheduler.plan import Opened, StepPlan

PENALTIES = [{"presence_penalty": 2.0}, {"frequency_penalty": 2.0}, {"repetition_penalty": 1.2}, {}]
PENALIZED = ["abaa", "abab", "baaa", "aaaa"]


class PoisonModel:
    """Logits are NaN for rows whose last token is `poison`; else the token after the last."""

    vocab_size = 264
    attention_specs: Sequence[AttentionSpec] = ()
    state_specs: Sequence[StateSpec] = ()

    def __init__(self, poison: int, value: float) -> None:
        self._poison = poison
        self._value = value

    def forward(self, batch: Batch) -> Tensor:
        return batch.token_ids[:, None]

    def logits(self, hidden: Tensor) -> Tensor:
        logits = torch.zeros(len(hidden), self.vocab_size).scatter_(1, (hidden + 1) % 256, 5.0)
        logits[hidden[:, 0] == self._poison, 17] = self._value
        return logits


class BrokenModel(UniformModel):
    """Fails in its second step."""

    def __init__(self) -> None:
        self.steps = 0

    def forward(self, batch: Batch) -> Tensor:
        self.steps += 1
        if self.steps == 2:
            raise RuntimeError("out of luck")
        return super().forward(batch)


@pytest.mark.parametrize(("penalty", "expected"), list(zip(PENALTIES, PENALIZED, strict=True)))
def test_penalties_alone(penalty: dict[str, float], expected: str) -> None:
    running = request(1, 'TAPE "aaaa"', **GREEDY, **penalty)
    generate(TapeModel(), [running], 4)
    assert text(running.output_ids) == expected


def test_penalties_in_a_staggered_batch_with_rows_that_leave() -> None:
    runner, hand = CpuRunner(make_execution(TapeModel())), Hand()
    batch = [request(1 + i, 'TAPE "aaaa"', **GREEDY, **PENALTIES[i % 4]) for i in range(32)]
    cancelled = {9, 18}
    for step in range(12):
        present = [one for i, one in enumerate(batch) if step >= i // 4 and len(one.output_ids) < 4]
        present = [one for one in present if step < 6 or batch.index(one) not in cancelled]
        if present:
            plan = hand.plan(present)
            collect(plan, runner.launch(plan).wait(), present)
    runner.close()
    said = [text(one.output_ids) for i, one in enumerate(batch) if i not in cancelled]
    assert said == [PENALIZED[i % 4] for i in range(32) if i not in cancelled]


def test_penalties_count_what_was_said_before_a_retraction() -> None:
    runner = CpuRunner(make_execution(TapeModel()))
    prompt = ids('TAPE "aaaa"')
    sequence = np.concatenate((prompt, int32([97, 98, 97])))
    sampling = Sampling(max_new_tokens=4, temperature=0.0, frequency_penalty=2.0)
    plan = StepPlan(
        step=0,
        rows=int32([5]),
        widths=int32([len(sequence)]),
        starts=int32([0]),
        token_ids=sequence,
        slots=np.arange(1, len(sequence) + 1, dtype=np.int32),
        samples=np.array([True]),
        num_outputs=int32([3]),
        opened=[Opened(5, prompt, sequence[len(prompt) :], sampling, None)],
    )
    assert runner.launch(plan).wait().token_ids.tolist() == [98]
    runner.close()


def test_a_row_forgets_the_request_before() -> None:
    runner, hand = CpuRunner(make_execution(TapeModel())), Hand()
    said = []
    demands = {"presence_penalty": 2.0, "logit_bias": {99: 50.0}, "min_new_tokens": 3, "top_k": 2, "seed": 3}
    for sampling in (demands, GREEDY):
        running = request(6, 'TAPE "aaaa"', **sampling)
        for _ in range(4):
            plan = hand.plan([running])
            collect(plan, runner.launch(plan).wait(), [running])
        said.append(text(running.output_ids))
    runner.close()
    assert said[0][0] == "c"
    assert said[1] == "aaaa"


def test_end_of_sequence_waits_for_the_minimum() -> None:
    batch = [
        request(1, 'TAPE "ab"', min_new_tokens=5, **GREEDY),
        request(2, 'TAPE "abcd"', min_new_tokens=4, stop_token_ids=(98, 120), **GREEDY),
        request(3, 'TAPE "ab"', **GREEDY),
    ]
    generate(TapeModel(), batch, 6)
    assert [running.output_ids for running in batch] == [
        [97, 98, 120, 120, 120, 257],
        [97, 99, 99, 100, 257, 257],
        [97, 98, 257, 257, 257, 257],
    ]


def test_bias_decides() -> None:
    batch = [
        request(1, 'TAPE "aa"', logit_bias={98: 0.5}, **GREEDY),
        request(2, 'TAPE "aa"', logit_bias={98: 1.5, 97: 0.25}, **GREEDY),
        request(3, 'TAPE "aa"', logit_bias={97: -100.0}, **GREEDY),
    ]
    generate(TapeModel(), batch, 2)
    assert [text(running.output_ids) for running in batch] == ["aa", "bb", "bb"]


def test_seeds_do_not_see_the_batch() -> None:
    def seeded(row: int) -> object:
        return request(row, "x", seed=7, temperature=1.0)

    alone = seeded(1)
    generate(UniformModel(), [alone], 16)
    others = [request(10 + i, "x", seed=100 + i, **(GREEDY if i % 2 else {"top_p": 0.9})) for i in range(16)]
    crowded = seeded(40)
    generate(UniformModel(), [*others[:5], crowded, *others[5:]], 16)
    assert crowded.output_ids == alone.output_ids
    assert all(other.output_ids != alone.output_ids for other in others)


def test_top_k_one_is_greedy() -> None:
    batch = [request(1, "ab", top_k=1, temperature=2.0, seed=5), request(2, "ab", **GREEDY)]
    generate(HashModel(), batch, 8)
    assert batch[0].output_ids == batch[1].output_ids


@pytest.mark.parametrize("value", [math.nan, math.inf])
@pytest.mark.parametrize("sampling", [GREEDY, {"top_p": 0.9, "seed": 1}, {"seed": 1}, {"frequency_penalty": 1.0}])
def test_unusable_logits_fail_their_row_alone(value: float, sampling: dict[str, float]) -> None:
    batch = [request(1, "ab", **GREEDY), request(2, "a!", **sampling), request(3, "cd", **GREEDY)]
    first, *_ = results = generate(PoisonModel(poison=ord("!"), value=value), batch, 3)
    assert list(first.errors) == [1]
    assert "NaN" in first.errors[1]
    assert [result.counts.tolist() for result in results] == [[1, 1, 1]] * 3
    assert text(batch[0].output_ids) == "cde"
    assert text(batch[2].output_ids) == "efg"
    assert all(0 <= token < 264 for token in batch[1].output_ids)


def test_two_launches_before_the_first_wait_equal_one_after_another() -> None:
    said = []
    for depth in (0, 1, 3):
        runner, hand = CpuRunner(make_execution(HashModel())), Hand()
        batch = [request(1, "ab", **GREEDY), request(2, "hello", seed=3, temperature=1.0, presence_penalty=1.0)]
        flying = []
        for _ in range(10):
            plan = hand.plan(batch)
            flying.append((plan, runner.launch(plan)))
            if len(flying) > depth:
                plan, launched = flying.pop(0)
                collect(plan, launched.wait(), batch)
        for plan, launched in flying:
            collect(plan, launched.wait(), batch)
        runner.close()
        said.append([running.output_ids for running in batch])
    assert said[0] == said[1] == said[2]
    assert len(said[0][0]) == 10


def test_a_row_and_its_slots_change_hands_while_the_late_step_is_in_flight() -> None:
    runner, hand = CpuRunner(make_execution(HashModel())), Hand()
    first = request(1, "ab", **GREEDY)
    runner.launch(hand.plan([first]))
    late = hand.plan([first])
    second = request(1, "ba", **GREEDY)
    opening = hand.plan([second])
    opening.slots[:] = [late.slots[0], opening.slots[0]]  # before the launch
    launched = [runner.launch(late), runner.launch(opening)]
    assert text(launched[1].wait().token_ids.tolist()) == "u"
    runner.close()


def test_the_last_of_several_writes_to_an_entry_holds() -> None:
    runner, hand = CpuRunner(make_execution(HashModel())), Hand()
    plain, again = request(1, "abcd", **GREEDY), request(2, "abcd", **GREEDY)
    first = hand.plan([plain])
    runner.launch(first)
    prefix = first.slots[:3].tolist()
    again.num_computed = 3
    later = hand.plan([again])
    writes = TableWrites(int32([2] * 6), int32([0, 1, 2] * 2), int32([4000, 4001, 4002, *prefix]))
    object.__setattr__(later, "table", writes)
    sampled = runner.launch(later).wait()
    assert sampled.token_ids.tolist() == [first_token("abcd")]
    runner.close()


def test_chunks_that_are_not_the_last_give_nothing() -> None:
    runner, hand = CpuRunner(make_execution(HashModel())), Hand()
    running = request(1, "abcdef", **GREEDY)
    sampled = runner.launch(hand.plan([Part(running, 4)])).wait()
    assert sampled.counts.tolist() == [0]
    assert sampled.token_ids.tolist() == []
    sampled = runner.launch(hand.plan([running])).wait()
    assert sampled.token_ids.tolist() == [first_token("abcdef")]
    runner.close()


def test_wait_raises_what_the_step_raised() -> None:
    runner, hand = CpuRunner(make_execution(BrokenModel())), Hand()
    running = request(1, "ab", **GREEDY)
    launched = [runner.launch(hand.plan([running])) for _ in range(3)]
    launched[0].wait()
    with pytest.raises(RuntimeError, match="out of luck"):
        launched[1].wait()
    assert launched[2].wait().counts.tolist() == [1]
    runner.close()


def first_token(prompt: str) -> int:
    running = request(1, prompt, **GREEDY)
    generate(HashModel(), [running], 1)
    return running.output_ids[0]
