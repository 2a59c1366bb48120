"""Drives a runner by hand: keeps page tables and slots the way a scheduler would, with room to get them wrong."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch

from corymb.cache.config import CacheConfig
from corymb.cache.writes import SlidingWrites
from corymb.models.builtin import NoAttention
from corymb.models.execution import Execution
from corymb.models.model import Model
from corymb.models.placement import Place
from corymb.models.pools import allocate
from corymb.models.rows import Rows
from corymb.models.runner import CpuRunner
from corymb.models.sampler import Sampler
from corymb.scheduler.messages import LogprobOptions, Sampling
from corymb.scheduler.plan import LAST_SAMPLED, Int32, Opened, Sampled, StepPlan

CPU = torch.device("cpu")
GREEDY = {"temperature": 0.0}
EOS_IDS = frozenset({257, 259})


def make_execution(model: Model, *, num_rows: int = 80, num_tokens: int = 8192, window: int = 0) -> Execution:
    config = CacheConfig(
        num_full_tokens=num_tokens,
        num_sliding_tokens=num_tokens if window else 0,
        sliding_window=window,
        num_rows=num_rows,
        context_length=1024,
    )
    place = Place(CPU)
    pools = allocate(model.attention_specs, config, dtype=torch.float32, place=place)
    return Execution(model, NoAttention(), pools, Rows(config, place), Sampler(num_rows, EOS_IDS, place))


def int32(values: Sequence[int] | np.ndarray) -> Int32:
    return np.asarray(values, np.int32)


def ids(text: str) -> Int32:
    return np.frombuffer(text.encode(), np.uint8).astype(np.int32)


def text(token_ids: Sequence[int]) -> str:
    return bytes(t for t in token_ids if t < 256).decode()


@dataclass
class Running:
    """One request: its row, and how far it is."""

    row: int
    prompt_ids: Int32
    sampling: Sampling
    logprobs: LogprobOptions | None = None
    embeds: bool = False
    num_computed: int = 0
    num_outputs: int = 0
    output_ids: list[int] = field(default_factory=list)
    opened: bool = False


@dataclass
class Part:
    """What one row does in a step; `width` None computes all that is left."""

    sequence: Running
    width: int | None = None


class Hand:
    """Makes plans. Slots are drawn in a shuffled order, so that no order can pass by accident."""

    def __init__(self, *, num_tokens: int = 8192, seed: int = 0, sliding: bool = False) -> None:
        self._free = np.random.default_rng(seed).permutation(num_tokens - 1).astype(np.int32) + 1
        self._sliding_free = np.random.default_rng(seed + 1).permutation(num_tokens - 1).astype(np.int32) + 1
        self.sliding = sliding
        self._step = 0

    def plan(self, parts: Sequence[Part | Running]) -> StepPlan:
        chunks = [self._chunk(part if isinstance(part, Part) else Part(part)) for part in parts]
        sequences = [chunk[0] for chunk in chunks]
        token_ids = [chunk[1] for chunk in chunks]
        widths = int32([len(one) for one in token_ids])
        slots, self._free = np.split(self._free, [widths.sum()])
        starts = int32([s.num_computed for s in sequences])
        done = [s.num_computed + w >= len(s.prompt_ids) for s, w in zip(sequences, widths.tolist(), strict=True)]
        plan = StepPlan(
            step=self._step,
            rows=int32([s.row for s in sequences]),
            widths=widths,
            starts=starts,
            token_ids=np.concatenate(token_ids),
            slots=slots,
            samples=np.array(done),
            num_outputs=int32([s.num_outputs for s in sequences]),
            opened=[
                Opened(s.row, s.prompt_ids, int32([]), s.sampling, s.logprobs, s.embeds)
                for s in sequences
                if not s.opened
            ],
            sliding=self._twins(slots),
            prompt_logprobs_from=_prompt_logprobs(sequences, widths),
        )
        self._step += 1
        for sequence, width, samples in zip(sequences, widths.tolist(), done, strict=True):
            sequence.opened = True
            sequence.num_computed += width
            sequence.num_outputs += samples
        return plan

    def _chunk(self, part: Part) -> tuple[Running, Int32]:
        sequence = part.sequence
        left = sequence.prompt_ids[sequence.num_computed :]
        return sequence, left[: part.width] if len(left) else int32([LAST_SAMPLED])

    def _twins(self, slots: Int32) -> SlidingWrites | None:
        if not self.sliding:
            return None
        twins, self._sliding_free = np.split(self._sliding_free, [len(slots)])
        return SlidingWrites(slots, twins)


def collect(plan: StepPlan, sampled: Sampled, sequences: Sequence[Running]) -> None:
    """Appends what a step gave to the sequences whose rows were in it."""
    by_row = {sequence.row: sequence for sequence in sequences}
    offset = 0
    for row, count in zip(plan.rows.tolist(), sampled.counts.tolist(), strict=True):
        by_row[row].output_ids += sampled.token_ids[offset : offset + count].tolist()
        offset += count


def generate(model: Model, sequences: Sequence[Running], num_tokens: int, **options: int) -> list[Sampled]:
    """Prefills all sequences in one step, then decodes them together, one step late as a scheduler would."""
    runner = CpuRunner(make_execution(model, window=options.get("window", 0)))
    hand = Hand(sliding=bool(options.get("window", 0)))
    results = []
    plan = hand.plan(sequences)
    launched = runner.launch(plan)
    for _ in range(num_tokens - 1):
        following = hand.plan(sequences)
        behind = runner.launch(following)
        results.append(launched.wait())
        collect(plan, results[-1], sequences)
        plan, launched = following, behind
    results.append(launched.wait())
    collect(plan, results[-1], sequences)
    runner.close()
    return results


def request(row: int, prompt: str, *, logprobs: LogprobOptions | None = None, **sampling: object) -> Running:
    return Running(row, ids(prompt), Sampling(max_new_tokens=64, **sampling), logprobs)  # type: ignore[arg-type]


def _prompt_logprobs(sequences: Sequence[Running], widths: Int32) -> Int32 | None:
    wanted = [s.logprobs.prompt_from if s.logprobs and s.logprobs.prompt_from >= 0 else None for s in sequences]
    if all(one is None for one in wanted):
        return None
    # The logits of position i score token i + 1.
    return int32(
        [
            width if first is None else min(max(first - 1 - s.num_computed, 0), width)
            for s, width, first in zip(sequences, widths.tolist(), wanted, strict=True)
        ]
    )
