"""Rows that wait for masks: what they sample, and that nothing else waits."""

import threading
from concurrent.futures import CancelledError
from dataclasses import replace

import numpy as np
import pytest

from corymb.models.builtin import UniformModel
from corymb.models.runner import CpuRunner
from corymb.scheduler.plan import Masks

from .by_hand import GREEDY, Hand, collect, int32, make_execution, request


def bits_of(*allowed: str) -> np.ndarray:
    """One row of a mask a string: its letters may come."""
    flags = np.zeros((len(allowed), 9 * 32), np.uint8)
    for row, letters in enumerate(allowed):
        flags[row, [ord(letter) for letter in letters]] = 1
    return np.packbits(flags, axis=1, bitorder="little").view(np.int32)


def test_masks_decide_what_waiting_rows_sample() -> None:
    runner, hand = CpuRunner(make_execution(UniformModel())), Hand()
    rows = [
        request(1, "a", seed=1),
        request(2, "b", **GREEDY),
        request(3, "c", seed=3),
        request(4, "d", seed=4, top_k=2),
    ]
    for _ in range(20):
        plan = replace(hand.plan(rows), constrained=int32([0, 1, 3]))
        launched = runner.launch(plan)
        launched.constrain(Masks(int32([0, 1, 3]), bits_of("xyz", "q", "mnop")))
        collect(plan, launched.wait(), rows)
    said = [{chr(token_id) for token_id in row.output_ids} for row in rows]
    assert said[0] == set("xyz")
    assert said[1] == {"q"}
    assert said[3] == set("mn")  # of equals the lower ids are the best
    free, hand = CpuRunner(make_execution(UniformModel())), Hand()
    alone = [request(1, "a", seed=1), request(2, "b", **GREEDY), request(3, "c", seed=3)]
    for _ in range(20):
        plan = hand.plan(alone)
        collect(plan, free.launch(plan).wait(), alone)
    assert alone[2].output_ids == rows[2].output_ids
    runner.close()
    free.close()


def test_a_row_whose_request_has_ended_needs_no_mask() -> None:
    runner, hand = CpuRunner(make_execution(UniformModel())), Hand()
    rows = [request(1, "a", **GREEDY), request(2, "b", **GREEDY)]
    for index in ([1], []):
        plan = replace(hand.plan(rows), constrained=int32([0, 1]))
        launched = runner.launch(plan)
        launched.constrain(Masks(int32(index), bits_of(*["k"] * len(index))))
        collect(plan, launched.wait(), rows)
    assert rows[1].output_ids == [ord("k"), 0]
    runner.close()


def test_a_mask_outweighs_the_least_number_of_tokens_and_a_bias() -> None:
    runner, hand = CpuRunner(make_execution(UniformModel())), Hand()
    rows = [request(1, "a", min_new_tokens=9, stop_token_ids=(ord("e"),), logit_bias={120: 50.0}, **GREEDY)]
    plan = replace(hand.plan(rows), constrained=int32([0]))
    launched = runner.launch(plan)
    launched.constrain(Masks(int32([0]), bits_of("e")))
    assert launched.wait().token_ids.tolist() == [ord("e")]
    runner.close()


def test_launching_never_waits_for_masks_and_the_forward_does_not_either() -> None:
    forwarded = threading.Event()

    class Telling(UniformModel):
        def logits(self, hidden):
            forwarded.set()
            return super().logits(hidden)

    runner, hand = CpuRunner(make_execution(Telling())), Hand()
    rows = [request(1, "a", **GREEDY)]
    first = replace(hand.plan(rows), constrained=int32([0]))
    launched = runner.launch(first)
    behind = runner.launch(replace(hand.plan(rows), constrained=int32([0])))
    assert forwarded.wait(10)
    launched.constrain(Masks(int32([0]), bits_of("k")))
    assert launched.wait().token_ids.tolist() == [ord("k")]
    runner.close()
    with pytest.raises(CancelledError):
        behind.wait()
