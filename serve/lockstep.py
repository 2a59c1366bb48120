"""How several ranks run one loop: rank 0 leads, the others do in every turn what it did.

Only rank 0 hears the main process and speaks to the detokenizer. What it hears, when, and what its steps gave, it
passes on; see `scheduler.turns`.
"""

import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from corymb.cache.writes import HostCopies
from corymb.models.gloo_group import LostRank
from corymb.models.meeting import Ranks
from corymb.scheduler.loop import Port
from corymb.scheduler.messages import Output, Reply, Stats, TooSlow, ToScheduler
from corymb.scheduler.plan import Drafts, Masks, Runner, Sampled, StepPlan, StepResult
from corymb.scheduler.turns import OutOfStep, Result, ToFollower, Turn, TurnClock, result_of, sampled_of
from corymb.serve.childhood import Pulse
from corymb.serve.garbage import settle
from corymb.serve.transport import Inbox, Outbox, address, scheduler_name

_WAIT_S = 1.0
_GRACE_S = 1.0  # in which the main process sees who died, before it hears who noticed


@dataclass(frozen=True, slots=True)
class Line:
    """A rank's place in the line of all: what its loop and its scheduler are given."""

    port: Port
    runner: Runner
    clock: Callable[[], float]
    condemn: Callable[[TooSlow], None] | None = None  # None: requests with slow grammars end at once


def alone(port: Port, runner: Runner) -> Line:
    """For the only rank."""
    return Line(port, runner, time.monotonic)


def lead(stack: ExitStack, ranks: Ranks, port: Port, runner: Runner) -> Line:
    """For rank 0."""
    clock = TurnClock()
    addresses = [ranks.store.get(_key(rank)).decode() for rank in range(1, ranks.meeting.size)]
    followers = [stack.enter_context(Outbox(to, bounded=True)) for to in addresses]
    leading = LeadingPort(port, followers, clock)
    return Line(leading, LeadingRunner(runner, followers), clock, leading.condemn)


def follow(
    stack: ExitStack, ranks: Ranks, sockets: Path, runner: Runner, pulse: Pulse, *, lost_message: int = 0
) -> Line:
    """For another rank. `lost_message`, a test seam: the message of this number, counted from 1, never arrives."""
    clock, rank = TurnClock(), ranks.meeting.rank
    on_first_node = rank < ranks.meeting.local_size
    at = address(sockets, scheduler_name(rank)) if on_first_node else f"tcp://{ranks.host}:*"
    inbox = stack.enter_context(Inbox[ToFollower](at, ToFollower))
    ranks.store.set(_key(rank), inbox.address)
    feed = Feed(inbox)
    port = FollowingPort(feed, clock, pulse, lost_message=lost_message)
    return Line(port, FollowingRunner(runner, feed), clock, _leave_to_rank_0)


@contextmanager
def blaming_the_dead() -> Iterator[None]:
    """Whoever sees another rank gone waits a moment: the main process should hear of the one that died first."""
    try:
        yield
    except LostRank:
        time.sleep(_GRACE_S)
        raise


def _leave_to_rank_0(_: TooSlow) -> None:
    """Its time decides: it tells everybody."""


def _key(rank: int) -> str:
    return f"feed/{rank}"


class LeadingPort:
    """Rank 0's port: passes each turn on before anything of it is planned."""

    def __init__(self, port: Port, followers: Sequence[Outbox], clock: TurnClock) -> None:
        self._port = port
        self._followers = followers
        self._clock = clock
        self._turn = 0
        self._verdicts: list[TooSlow] = []

    def condemn(self, verdict: TooSlow) -> None:
        """Has a request end in the next turn, on every rank."""
        self._verdicts.append(verdict)

    def receive(self, timeout_s: float) -> list[ToScheduler]:
        """See Port."""
        messages = [*self._port.receive(timeout_s), *self._verdicts]
        self._verdicts = []
        self._clock.now_s = time.monotonic()
        turn = Turn(self._turn, self._clock.now_s)
        self._turn += 1
        for follower in self._followers:
            for message in messages:
                follower.send(message)
            follower.send(turn)
        return messages

    def send_step(self, outputs: list[Output]) -> None:
        """See Port."""
        self._port.send_step(outputs)

    def send(self, message: Stats | Reply) -> None:
        """See Port."""
        self._port.send(message)


class LeadingRunner:
    """Rank 0's runner: passes on what its steps gave."""

    def __init__(self, runner: Runner, followers: Sequence[Outbox]) -> None:
        self._runner = runner
        self._followers = followers

    def launch(self, plan: StepPlan) -> StepResult:
        """See Runner."""
        return _LeadingStep(self._runner.launch(plan), plan.step, self._followers)

    def copy(self, copies: HostCopies) -> None:
        """See Runner."""
        self._runner.copy(copies)

    def close(self) -> None:
        """See Runner."""
        self._runner.close()


class _LeadingStep:
    def __init__(self, step: StepResult, number: int, followers: Sequence[Outbox]) -> None:
        self._step = step
        self._number = number
        self._followers = followers

    def drafts(self) -> Drafts | None:
        return self._step.drafts()

    def constrain(self, masks: Masks) -> None:
        self._step.constrain(masks)

    def wait(self) -> Sampled:
        sampled = self._step.wait()
        result = result_of(self._number, sampled)
        for follower in self._followers:
            follower.send(result)
        return sampled


class Feed:
    """What rank 0 sends to one other rank, a message at a time."""

    def __init__(self, inbox: Inbox[ToFollower]) -> None:
        self._inbox = inbox
        self._waiting: deque[ToFollower] = deque()

    def next(self) -> ToFollower:
        """The next message; waits for it."""
        while not self._waiting:
            self._waiting.extend(self._inbox.receive(_WAIT_S))
        return self._waiting.popleft()


class FollowingPort:
    """Another rank's port: its turns are rank 0's, and it speaks to nobody."""

    def __init__(self, feed: Feed, clock: TurnClock, pulse: Pulse, *, lost_message: int = 0) -> None:
        self._feed = feed
        self._clock = clock
        self._pulse = pulse
        self._lost_message = lost_message
        self._num_messages = 0
        self._turn = 0

    def receive(self, timeout_s: float) -> list[ToScheduler]:  # noqa: ARG002 - rank 0 decides how long to wait
        """See Port."""
        self._pulse.rest()
        messages: list[ToScheduler] = []
        while not isinstance(message := self._feed.next(), Turn):
            if isinstance(message, Result):
                raise OutOfStep(f"Rank 0 ended step {message.step}, which this rank did not wait for.")
            self._num_messages += 1
            if self._num_messages != self._lost_message:
                messages.append(message)
        if message.number != self._turn:
            raise OutOfStep(f"Rank 0 is in turn {message.number}, this rank in turn {self._turn}.")
        self._turn += 1
        self._clock.now_s = message.now_s
        self._pulse.work()
        return messages

    def send_step(self, outputs: list[Output]) -> None:
        """Rank 0 sends them."""

    def send(self, message: Stats | Reply) -> None:
        """Rank 0 sends its own."""
        if isinstance(message, Stats):
            settle()


class FollowingRunner:
    """Another rank's runner: its steps give what rank 0's gave."""

    def __init__(self, runner: Runner, feed: Feed) -> None:
        self._runner = runner
        self._feed = feed

    def launch(self, plan: StepPlan) -> StepResult:
        """See Runner."""
        return _FollowingStep(self._runner.launch(plan), plan.step, self._feed)

    def copy(self, copies: HostCopies) -> None:
        """See Runner."""
        self._runner.copy(copies)

    def close(self) -> None:
        """See Runner."""
        self._runner.close()


class _FollowingStep:
    def __init__(self, step: StepResult, number: int, feed: Feed) -> None:
        self._step = step
        self._number = number
        self._feed = feed

    def drafts(self) -> Drafts | None:
        return self._step.drafts()

    def constrain(self, masks: Masks) -> None:
        self._step.constrain(masks)

    def wait(self) -> Sampled:
        self._step.wait()  # what this rank's own forward raised, ends it
        result = self._feed.next()
        if not isinstance(result, Result) or result.step != self._number:
            raise OutOfStep(f"This rank ended step {self._number}, and rank 0 did not.")
        return sampled_of(result)
