"""What a step waits for its masks is none of its time: the cost model would take slow grammars for a slow model."""

import time
from pathlib import Path

import numpy as np
import pytest
from test_exactness import write_folder

from corymb.models.build import RunnerOptions, build
from corymb.models.warm_up import padding_step
from corymb.scheduler.plan import LAST_SAMPLED, Masks, StepPlan, Windows
from corymb.speculative.ngram import NgramSpeculation

WAIT_S = 0.3
ONE, NONE = np.ones(1, np.int32), np.zeros(1, np.int32)


def decode(window: int) -> StepPlan:
    """The padding row, whose token a mask decides."""
    return StepPlan(
        step=0,
        rows=NONE,
        widths=ONE,
        starts=2 * ONE,
        token_ids=ONE * LAST_SAMPLED,
        slots=NONE[:0],
        samples=np.ones(1, np.bool_),
        num_outputs=ONE,
        constrained=NONE,
        windows=Windows(ONE * window, None, NONE, NONE),
    )


@pytest.mark.parametrize("window", [0, 3], ids=["plain", "drafting"])
def test_waiting_for_masks_does_not_count(tmp_path: Path, window: int) -> None:
    folder = write_folder(tmp_path, "CorymbHash", None)
    speculation = NgramSpeculation(3, least=1, longest=4)
    built = build(RunnerOptions(folder, max_running_requests=2, speculation=speculation), lambda *_: None)
    try:
        built.runner.launch(padding_step(2)).wait()
        begun_s = time.perf_counter()
        step = built.runner.launch(decode(window))
        drafts = step.drafts()
        assert (drafts is None) == (not window)
        time.sleep(WAIT_S)  # a grammar takes its time
        step.constrain(Masks(NONE, np.full((1, -(-built.vocab_size // 32)), -1, np.int32), places=NONE))
        sampled = step.wait()
        took_s = time.perf_counter() - begun_s
    finally:
        built.runner.close()
    assert sampled.forward_s <= took_s - 0.9 * WAIT_S
    if sampled.drafted is not None:
        assert sampled.drafted.verify_s <= took_s - 0.9 * WAIT_S
