"""Digests of plans, and what followers make of what rank 0 sends."""

import dataclasses
from collections import deque

import msgspec
import numpy as np
import pytest

from corymb.cache.writes import TableWrites
from corymb.scheduler.agreement import Agreement, digest, digests
from corymb.scheduler.messages import Abort, Generate, Logprob, Sampling, TooSlow
from corymb.scheduler.plan import Drafted, Opened, Sampled, StepPlan
from corymb.scheduler.turns import OutOfStep, Result, ToFollower, Turn, TurnClock, result_of, sampled_of
from corymb.serve.childhood import Pulse
from corymb.serve.lockstep import Feed, FollowingPort, FollowingRunner, LeadingPort, LeadingRunner


def int32(*values: int) -> np.ndarray:
    return np.array(values, np.int32)


def a_plan(**changes: object) -> StepPlan:
    opened = Opened(1, int32(5, 6), int32(), Sampling(max_new_tokens=4, logit_bias={3: 1.0}), None)
    plan = StepPlan(
        step=7,
        rows=int32(1, 2),
        widths=int32(2, 1),
        starts=int32(0, 9),
        token_ids=int32(5, 6, -1),
        slots=int32(11, 12, 13),
        samples=np.array([True, True]),
        num_outputs=int32(0, 3),
        opened=[opened],
        table=TableWrites(int32(1), int32(0), int32(11)),
    )
    return dataclasses.replace(plan, **changes)


CHANGES = {
    "step": 8,
    "slots": int32(11, 13, 12),
    "samples": np.array([True, False]),
    "opened": (),
    "table": TableWrites(int32(1), int32(0), int32(12)),
    "token_ids": int32(5, 6, -2),
}


@pytest.mark.parametrize("name", CHANGES)
def test_the_first_difference_is_named(name: str) -> None:
    theirs = digests(a_plan(**{name: CHANGES[name]}))
    with pytest.raises(OutOfStep, match=rf"Ranks 0 and 1 plan different steps in turn 0.*first differ in '{name}'"):
        Agreement(lambda own: [theirs, own], 1)(a_plan())
    with pytest.raises(OutOfStep, match=rf"Ranks 0 and 1 .*first differ in '{name}'"):
        Agreement(lambda own: [own, theirs], 0)(a_plan())


def test_a_plan_and_none_differ() -> None:
    with pytest.raises(OutOfStep, match=r"'step', whose digests are nothing and [0-9a-f]{16}"):
        Agreement(lambda own: [own, digests(a_plan())], 0)(None)


def test_equal_plans_agree_whatever_objects_they_are() -> None:
    agree = Agreement(lambda own: [own, digests(a_plan()), own], 0)
    agree(a_plan())
    agree(a_plan(opened=(a_plan().opened[0],)))
    Agreement(lambda own: [own, digests(None)], 0)(None)


class Wire:
    """An outbox and the inbox at its other end; messages are encoded as on a socket."""

    def __init__(self) -> None:
        self._sent: deque[bytes] = deque()

    def send(self, message: msgspec.Struct) -> None:
        self._sent.append(msgspec.msgpack.encode(message))

    def receive(self, timeout_s: float) -> list[ToFollower]:
        assert self._sent, "rank 0 has said nothing more"
        sent, self._sent = self._sent, deque()
        return [msgspec.msgpack.decode(each, type=ToFollower) for each in sent]


class Main:
    """Rank 0's port."""

    def __init__(self, *turns: list) -> None:
        self._turns = list(turns)
        self.sent: list = []

    def receive(self, timeout_s: float) -> list:
        return self._turns.pop(0)

    def send_step(self, outputs: list) -> None:
        self.sent.append(outputs)

    def send(self, message: object) -> None:
        self.sent.append(message)


class Steps:
    """A runner whose steps give what it was made with."""

    def __init__(self, *sampled: Sampled) -> None:
        self._sampled = list(sampled)

    def launch(self, plan: StepPlan) -> "Steps":
        return self

    def wait(self) -> Sampled:
        return self._sampled.pop(0)

    def close(self) -> None:
        pass


ASKED = Generate("r#1", b"\5\0\0\0", Sampling(max_new_tokens=3))


def test_a_follower_hears_the_same_messages_at_the_same_time() -> None:
    wire, lead_clock, follow_clock = Wire(), TurnClock(), TurnClock()
    lead = LeadingPort(Main([ASKED, Abort("r#1")], [], [ASKED]), [wire], lead_clock)
    follow = FollowingPort(Feed(wire), follow_clock, Pulse())
    for _ in range(3):
        assert lead.receive(0.0) == follow.receive(9.0)
        assert lead_clock() == follow_clock() > 0


def test_every_rank_hears_of_a_slow_grammar_in_the_next_turn() -> None:
    wire = Wire()
    lead = LeadingPort(Main([ASKED], [], []), [wire], TurnClock())
    follow = FollowingPort(Feed(wire), TurnClock(), Pulse())
    assert lead.receive(0.0) == follow.receive(9.0) == [ASKED]
    lead.condemn(TooSlow("r#1", 0.2))
    assert lead.receive(0.0) == follow.receive(9.0) == [TooSlow("r#1", 0.2)]
    assert lead.receive(0.0) == follow.receive(9.0) == []


def test_a_follower_takes_what_rank_0_sampled() -> None:
    wire = Wire()
    errors, scores = {1: "NaN"}, {0: [Logprob(4, -0.5)]}
    said = Sampled(int32(41, 42), int32(1, 1), 0.25, prompt_logprobs=scores, errors=errors)
    own = Sampled(int32(7, 8), int32(1, 1), 0.75)
    leading = LeadingRunner(Steps(said), [wire]).launch(a_plan())
    following = FollowingRunner(Steps(own), Feed(wire)).launch(a_plan())
    assert leading.wait() is said
    found = following.wait()
    assert found.token_ids.tolist() == [41, 42]
    assert (found.counts.tolist(), found.errors, found.prompt_logprobs) == ([1, 1], errors, scores)


def test_a_follower_that_waits_for_another_step_says_so() -> None:
    wire = Wire()
    wire.send(result_of(6, Sampled(int32(1), int32(1), 0.0)))
    step = FollowingRunner(Steps(Sampled(int32(1), int32(1), 0.0)), Feed(wire)).launch(a_plan(step=7))
    with pytest.raises(OutOfStep, match="step 7"):
        step.wait()


@pytest.mark.parametrize("message", [Turn(5, 1.0), result_of(3, Sampled(int32(), int32(), 0.0))])
def test_a_follower_that_missed_a_turn_says_so(message: Turn | Result) -> None:
    wire = Wire()
    wire.send(message)
    with pytest.raises(OutOfStep):
        FollowingPort(Feed(wire), TurnClock(), Pulse()).receive(0.0)


def test_results_survive_the_wire() -> None:
    sampled = Sampled(int32(3, -1, 7), int32(2, 0, 1), 0.5)
    assert_survives(sampled)


@pytest.mark.parametrize("allowed", [None, int32(1, 0)])
@pytest.mark.parametrize("confidence", [None, np.array([[0.5, 0.25], [0.125, 1.0]], np.float32)])
def test_what_drafts_cost_and_gave_survives_too(allowed: np.ndarray | None, confidence: np.ndarray | None) -> None:
    assert_survives(Sampled(int32(3, 4), int32(1, 1), 0.5, drafted=Drafted(int32(2, 1), confidence, 0.2, 0.3, allowed)))


def assert_survives(sampled: Sampled) -> None:
    back = sampled_of(msgspec.msgpack.decode(msgspec.msgpack.encode(result_of(1, sampled)), type=Result))
    assert digest(back) == digest(sampled)
    assert back.forward_s == 0.5
