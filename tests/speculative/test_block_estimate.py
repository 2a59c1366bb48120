"""What censored blocks would have given, from what the target says of their places later."""

from collections.abc import Sequence

import numpy as np
import pytest
import torch

from corymb.scheduler.plan import Blocks
from corymb.speculative.block_estimate import BlockEstimate, Law, Step

NUM_DRAFTS, VOCAB = 3, 10


def step(start: int, drafts: Sequence[int], window: int, said: Sequence[int], *laws: Law) -> Step:
    """Of one row."""
    outputs = np.zeros((1, NUM_DRAFTS + 1), np.int32)
    outputs[0, : len(said)] = said
    most = NUM_DRAFTS if len(drafts) else 0
    drafts = [*drafts, *[0] * (NUM_DRAFTS - len(drafts))]
    one = lambda *values: np.array(values, np.int32)  # noqa: E731
    return Step(one(1), one(start), one(*drafts)[None], one(most), one(window), outputs, one(len(said)), laws)


def law(target: Sequence[dict[int, float]], draft: Sequence[float] | None, drafts: Sequence[int]) -> Law:
    """Of one row: chances by token at its places, and those that its drafts had."""
    chances = torch.zeros(1, NUM_DRAFTS + 1, VOCAB)
    for place, tokens in enumerate(target):
        for token, chance in tokens.items():
            chances[0, place, token] = chance
    if draft is None:
        return Law([0], chances, None)
    drawn = torch.zeros(1, NUM_DRAFTS, VOCAB)
    for place, (token, chance) in enumerate(zip(drafts, draft, strict=True)):
        drawn[0, place, token] = chance
    return Law([0], chances, drawn)


def test_what_was_rejected_or_whole_is_known_at_once() -> None:
    estimate = BlockEstimate()
    assert estimate.follow(step(5, [1, 2, 3], 3, [1, 2, 3, 4])) == Blocks(1, 4.0, 4.0)
    assert estimate.follow(step(9, [1, 2, 3], 2, [1, 7])) == Blocks(1, 2.0, 2.0)


def test_a_greedy_block_is_followed_until_the_text_leaves_it() -> None:
    estimate = BlockEstimate()
    assert estimate.follow(step(5, [1, 2, 3], 1, [1, 2])) == Blocks(0, 0.0, 0.0)  # the bonus was the second draft
    # It went on with 3: all would have been accepted, and the target's own token after them. The new block is whole.
    assert estimate.follow(step(7, [8, 8, 8], 3, [3])) == Blocks(2, 4.0 + 1, 4.0 + 1)
    assert estimate.follow(step(8, [1, 2, 3], 0, [9])) == Blocks(1, 1.0, 1.0)


def test_chances_are_those_of_rejection_and_the_rest_is_a_bound() -> None:
    estimate, drafts = BlockEstimate(), [1, 2, 3]
    first = law([{}, {2: 0.2, 6: 0.8}], [0.9, 0.4, 0.5], drafts)
    found = estimate.follow(step(5, drafts, 1, [1, 6], first))
    # Accepted: 1 and the target's; the second had 0.2 / 0.4; of the third nothing will be known.
    assert found.count == 1
    assert found.lower == pytest.approx(2.5)
    assert found.upper == pytest.approx(3.0)


def test_a_drawn_block_goes_on_in_later_steps() -> None:
    estimate, drafts = BlockEstimate(), [1, 2, 3]
    begun = estimate.follow(step(5, drafts, 1, [1, 2], law([{}, {2: 0.2}], [0.9, 0.4, 0.5], drafts)))
    assert begun.count == 0
    found = estimate.follow(step(7, [], 0, [4], law([{3: 0.1}], None, [])))
    assert found.count == 1
    assert found.lower == found.upper == pytest.approx(2 + 0.5 + 0.5 * 0.2)


def test_a_row_that_moved_unseen_ends_what_was_open() -> None:
    estimate, drafts = BlockEstimate(), [1, 2, 3]
    estimate.follow(step(5, drafts, 0, [1]))
    found = estimate.follow(step(9, [], 0, [4]))
    assert found == Blocks(1, 2.0, 4.0)
