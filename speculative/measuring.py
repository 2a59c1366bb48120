"""Measures what a server's steps cost, on the padding row, before its first request."""

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from corymb.cache.writes import Landmarks, StateWrites
from corymb.models.build import Built
from corymb.models.warm_up import padding_step
from corymb.scheduler.plan import LAST_SAMPLED, Int32, Runner, Sampled, StepPlan, StepResult, Windows
from corymb.speculative.cost_model import CostModel, Curve, Tiers, as_they_are, envelope, filled_up_to

ROWS = (1, 4, 16)
GPU_ROWS = (1, 4, 16, 64, 256)  # more rows cost little there, and no line that begins with few tells of them
REPEATS = 3
SHORT, LONG = 2, 1024  # tokens of context

Run = Callable[[Sequence[StepPlan]], list[Sampled]]  # see run_in_turns


@dataclass(frozen=True, slots=True)
class Room:
    """What steps of a server may hold."""

    max_rows: int
    context_length: int


def measure_server(built: Built) -> CostModel:
    """The cost model of a server that drafts, before its first request."""
    assert built.num_drafts is not None, "a server that drafts"
    return measure(
        partial(run_in_turns, built.runner),
        num_drafts=built.num_drafts,
        room=Room(built.cache_config.num_rows - 1, built.context_length),
        rows=ROWS if built.device == "cpu" else GPU_ROWS,
        tier=filled_up_to(built.token_tiers),
    )


def run_in_turns(runner: Runner, plans: Sequence[StepPlan]) -> list[Sampled]:
    """Launches each plan while the one before it runs, as a loop does."""
    sampled, in_flight = [], deque[StepResult]()
    for plan in plans:
        in_flight.append(runner.launch(plan))
        if len(in_flight) > 1:
            sampled.append(in_flight.popleft().wait())
    return [*sampled, *(step.wait() for step in in_flight)]


def measure(
    run: Run, *, num_drafts: int, room: Room, rows: Sequence[int] = ROWS, tier: Tiers = as_they_are
) -> CostModel:
    """The cost model of a runner, from steps of so many `rows`."""
    sizes = [size for size in rows if size <= room.max_rows] or [1]
    draft_s: dict[int, float] = {}
    verify_s: dict[int, float] = {}
    for num_rows in sizes:
        plain = _fastest(run, num_rows, 0, SHORT)
        verify_s[num_rows] = plain.forward_s
        for window in {1, num_drafts} if num_rows == 1 else {num_drafts}:
            drafted = _fastest(run, num_rows, window, SHORT).drafted
            assert drafted is not None, "a step with windows says what they cost"
            draft_s[num_rows] = min(drafted.draft_s, draft_s.get(num_rows, drafted.draft_s))
            num_tokens = num_rows + int(drafted.num_verified.sum())
            verify_s[num_tokens] = min(drafted.verify_s, verify_s.get(num_tokens, drafted.verify_s))
    longest = min(LONG, room.context_length - num_drafts - 2)
    share = _context_share(run, {size: verify_s[size] for size in {sizes[0], sizes[-1]}}, longest)
    most = room.max_rows * (1 + num_drafts)
    return CostModel(0.0, _curve(draft_s, room.max_rows), _curve(verify_s, most), tier, share)


def _context_share(run: Run, short_s: dict[int, float], longest: int) -> float:
    """κ: how much longer a step takes for every token of its rows' context, from steps of so many rows."""
    if longest <= SHORT:
        return 0.0
    longer = [_fastest(run, num_rows, 0, longest).forward_s / seconds - 1 for num_rows, seconds in short_s.items()]
    return max(float(np.mean(longer)) / (longest - SHORT), 0.0)


def _curve(seconds: dict[int, float], farthest: int) -> Curve:
    counts: Sequence[int] = sorted(seconds)
    return envelope(counts, [seconds[count] for count in counts], farthest=farthest)


def _fastest(run: Run, num_rows: int, window: int, context: int) -> Sampled:
    # What the padding row has read is of no consequence: only its end is computed.
    prompt = replace(padding_step(SHORT), starts=np.array([context - SHORT], np.int32))
    steps = run([prompt, *(_step(num_rows, window, context) for _ in range(1 + REPEATS))])
    return min(steps[2:], key=lambda step: step.forward_s)


def _step(num_rows: int, window: int, context: int) -> StepPlan:
    """The padding row, so many times over: nobody reads what it writes."""
    zeros: Int32 = np.zeros(num_rows, np.int32)
    return StepPlan(
        step=0,
        rows=zeros,
        widths=np.ones(num_rows, np.int32),
        starts=np.full(num_rows, context, np.int32),
        token_ids=np.full(num_rows, LAST_SAMPLED, np.int32),
        slots=np.empty(0, np.int32),
        samples=np.ones(num_rows, np.bool_),
        num_outputs=np.ones(num_rows, np.int32),
        states=StateWrites.only(zeros, Landmarks(zeros, zeros)),
        windows=Windows(np.full(num_rows, window, np.int32), None, zeros, zeros),
    )
