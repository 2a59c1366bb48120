"""The first steps of a runner: they meet every kernel once, so that no request waits for it, or fails on it."""

import numpy as np

from corymb.scheduler.messages import Sampling
from corymb.scheduler.plan import LAST_SAMPLED, Opened, Runner, StepPlan

_PADDING_ROW = 0  # nobody reads its table entries, nor slot 0


def warm_up(runner: Runner) -> None:
    """Runs a prompt of two tokens and a decode on the padding row. Raises what the steps raise."""
    prompt_ids = np.zeros(2, np.int32)
    opened = Opened(_PADDING_ROW, prompt_ids, prompt_ids[:0], Sampling(max_new_tokens=2, temperature=0.0), None)
    steps = [runner.launch(_plan(prompt_ids, 0, [opened])), runner.launch(_plan(np.array([LAST_SAMPLED]), 2, []))]
    for step in steps:
        step.wait()


def _plan(token_ids: np.ndarray[tuple[int], np.dtype[np.int32]], start: int, opened: list[Opened]) -> StepPlan:
    width = len(token_ids)
    return StepPlan(
        step=0,
        rows=np.array([_PADDING_ROW], np.int32),
        widths=np.array([width], np.int32),
        starts=np.array([start], np.int32),
        token_ids=token_ids.astype(np.int32),
        slots=np.zeros(width, np.int32),
        samples=np.ones(1, np.bool_),
        num_outputs=np.array([1 if start else 0], np.int32),
        opened=opened,
    )
