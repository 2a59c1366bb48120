"""Plans for benchmarks: rows with cached prompts that decode together, and prompts in chunks."""

from collections.abc import Iterator

import numpy as np

from corymb.cache.writes import TableWrites
from corymb.scheduler.messages import Sampling
from corymb.scheduler.plan import LAST_SAMPLED, Opened, Runner, StepPlan

GREEDY = Sampling(max_new_tokens=1 << 20, temperature=0.0)


def decode_plans(batch: int, context: int, sampling: Sampling = GREEDY) -> Iterator[StepPlan]:
    """Endless decode steps of `batch` rows whose first `context` tokens lie in the pool, whatever it holds."""
    rows = np.arange(1, batch + 1, dtype=np.int32)
    prefix = np.arange(1, batch * context + 1, dtype=np.int32)
    writes = TableWrites(np.repeat(rows, context), np.tile(np.arange(context, dtype=np.int32), batch), prefix)
    prompt = np.arange(3, 3 + context, dtype=np.int32)
    none = np.empty(0, np.int32)
    opened = [Opened(row, prompt, none, sampling, None) for row in rows.tolist()]
    step = 0
    while True:
        first = step == 0
        yield StepPlan(
            step=step,
            rows=rows,
            widths=np.ones(batch, np.int32),
            starts=np.full(batch, context + step, np.int32),
            token_ids=np.full(batch, 7 if first else LAST_SAMPLED, np.int32),
            slots=np.arange(batch, dtype=np.int32) + np.int32(1 + batch * (context + step)),
            samples=np.ones(batch, np.bool_),
            num_outputs=np.full(batch, step, np.int32),
            opened=opened if first else (),
            table=writes if first else TableWrites.none(),
        )
        step += 1


def prefill_plans(num_prompts: int, num_tokens: int, chunk: int) -> list[StepPlan]:
    """Whole prompts, as many a step as fit a chunk; a prompt may go on in the next step."""
    numbers = np.random.default_rng(0)
    prompts = [numbers.integers(3, 40000, num_tokens).astype(np.int32) for _ in range(num_prompts)]
    plans: list[StepPlan] = []
    pieces: list[tuple[int, int, int]] = []  # prompt, start, width
    room = chunk
    for prompt in range(num_prompts):
        start = 0
        while start < num_tokens:
            width = min(room, num_tokens - start)
            pieces.append((prompt, start, width))
            start, room = start + width, room - width
            if not room:
                plans.append(_chunk_plan(len(plans), pieces, prompts))
                pieces, room = [], chunk
    if pieces:
        plans.append(_chunk_plan(len(plans), pieces, prompts))
    return plans


def _chunk_plan(step: int, pieces: list[tuple[int, int, int]], prompts: list[np.ndarray]) -> StepPlan:
    size = len(prompts[0])
    none = np.empty(0, np.int32)
    return StepPlan(
        step=step,
        rows=np.array([prompt + 1 for prompt, _, _ in pieces], np.int32),
        widths=np.array([width for _, _, width in pieces], np.int32),
        starts=np.array([start for _, start, _ in pieces], np.int32),
        token_ids=np.concatenate([prompts[prompt][start : start + width] for prompt, start, width in pieces]),
        slots=np.concatenate(
            [np.arange(start, start + width, dtype=np.int32) + 1 + prompt * size for prompt, start, width in pieces]
        ),
        samples=np.array([start + width == size for _, start, width in pieces]),
        num_outputs=np.zeros(len(pieces), np.int32),
        opened=[Opened(p + 1, prompts[p], none, GREEDY, None) for p, start, _ in pieces if start == 0],
    )


def run_late(runner: Runner, plans: Iterator[StepPlan], count: int) -> float:
    """Runs steps, each result read one step late as the server does; returns the sum of the steps' device seconds."""
    launched, total = None, 0.0
    for _ in range(count):
        behind = runner.launch(next(plans))
        if launched is not None:
            total += launched.wait().forward_s
        launched = behind
    return total + launched.wait().forward_s if launched is not None else total
