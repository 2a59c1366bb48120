"""States, lengths and limits of one request."""

import itertools

import numpy as np
import pytest

from corymb.scheduler.request import MOVES, IllegalMoveError, State, request_from

from .bench import EOS, generate


def request_of(*args, **fields):
    return request_from(generate(*args, **fields), eos_ids=EOS, low_first=False, now_s=50.0, processed=7)


@pytest.mark.parametrize(("before", "after"), list(itertools.product(State, State)))
def test_only_the_moves_of_the_table_are_legal(before, after):
    request = request_of("a")
    request.state = before
    if after in MOVES[before]:
        request.move(after)
        assert request.state is after
    else:
        with pytest.raises(IllegalMoveError, match=f"{before.value} cannot become {after.value}"):
            request.move(after)
        assert request.state is before


def test_nothing_follows_finished():
    assert not MOVES[State.FINISHED]
    assert all(State.FINISHED in moves for state, moves in MOVES.items() if state is not State.FINISHED)


def test_known_tokens_are_the_prompt_and_what_was_produced():
    request = request_of("a", b"xy")
    request.output_ids += [1, 2]
    request.refresh()
    assert request.token_ids.tolist() == [*b"xy", 1, 2]
    assert request.key.token_ids.dtype == np.int32


def test_stop_ids_hold_the_eos_ids_unless_they_are_ignored():
    assert request_of("a", stop_token_ids=(5,)).stop_ids == EOS | {5}
    assert request_of("a", stop_token_ids=(5,), ignore_eos=True).stop_ids == {5}


@pytest.mark.parametrize(
    ("prompt_from", "collected", "limit"),
    [(None, 0, 9), (-1, 0, 9), (0, 0, 0), (1, 0, 0), (4, 0, 3), (4, 2, 5), (4, 6, 9), (9, 0, 8), (10, 0, 9)],
)
def test_a_hit_stops_before_what_must_be_scored(prompt_from, collected, limit):
    request = request_of("a", b"0123456789", prompt_from=prompt_from)
    request.prompt_logprobs = [None] * collected
    assert request.hit_limit() == limit


@pytest.mark.parametrize(("arrived_s", "expected"), [(0.0, 50.0), (20.0, 20.0), (99.0, 50.0)])
def test_arrival_is_never_in_the_future(arrived_s, expected):
    assert request_of("a", arrived_s=arrived_s).arrived_s == expected


@pytest.mark.parametrize(("priority", "low_first", "urgency"), [(None, False, 0), (3, False, 3), (3, True, -3)])
def test_urgency_follows_the_configured_sense_of_priority(priority, low_first, urgency):
    message = generate("a", priority=priority)
    request = request_from(message, eos_ids=EOS, low_first=low_first, now_s=0.0, processed=0)
    assert request.urgency == urgency
