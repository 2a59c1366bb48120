"""One request: what was asked, how far it is, and the states it may be in."""

from dataclasses import dataclass, field
from enum import Enum

import numpy as np

from corymb.cache.fetch import Fetch
from corymb.cache.key import Key
from corymb.cache.lease import Lease
from corymb.scheduler.constraint import Constraint
from corymb.scheduler.messages import Generate, Logprob, LogprobOptions, Sampling, Speculated, TextOptions
from corymb.scheduler.plan import Int32


class State(Enum):
    """Where a request is in its life."""

    WAITING = "waiting"  # in the queue, holds no memory; after a retraction it may have output tokens
    PREFILLING = "prefilling"  # holds a lease; some of its known tokens are not planned yet
    RUNNING = "running"  # holds a lease; every known token is planned, a step adds one more
    FINISHED = "finished"  # answered; holds nothing


MOVES: dict[State, frozenset[State]] = {
    State.WAITING: frozenset({State.PREFILLING, State.FINISHED}),
    State.PREFILLING: frozenset({State.RUNNING, State.WAITING, State.FINISHED}),
    State.RUNNING: frozenset({State.WAITING, State.FINISHED}),
    State.FINISHED: frozenset(),
}


class IllegalMoveError(Exception):
    """A request was sent from one state to another that cannot follow it: a fault of the scheduler's own logic."""


@dataclass(slots=True, eq=False, kw_only=True)
class Request:
    """A request that passed the door. The ledger alone moves it between states and gives and takes its lease."""

    rid: str
    prompt_ids: Int32
    sampling: Sampling
    text: TextOptions
    logprobs: LogprobOptions | None
    cache_salt: str | None
    extra_key: str | None
    routing_key: str | None
    priority: int  # as the client gave it; 0 where it gave none
    urgency: int  # the greater, the sooner
    stop_ids: frozenset[int]  # tokens that end it: its own stop ids, and the model's EOS ids unless it ignores them
    embeds: bool
    arrived_s: float
    processed_at_arrival: int  # tokens the scheduler had prefilled when it came; hrrn ages requests by this
    constraint: Constraint | None = None  # what its output must follow, advanced to its last output token
    entered: int = 0  # place in the queue: grows with every entry, so a retracted request goes to the tail
    state: State = State.WAITING
    output_ids: list[int] = field(default_factory=list)
    key: Key = field(init=False)  # every known token: prompt, then outputs
    lease: Lease | None = None
    last_step: int = -1  # last step it took part in before it lost its row
    num_cached: int = 0  # of the prompt, at first admission: what usage reports
    first_launch_s: float | None = None  # None until admitted for the first time
    answered: bool = False  # True once an Output was made for it
    prompt_logprobs: list[Logprob] = field(default_factory=list)  # collected so far, in order of position
    embedding: bytes | None = None
    fetch: Fetch | None = None  # what is read from storage for it; None where nothing is, or it has been seated
    speculated: Speculated | None = None  # None while no drafts of it were verified

    def __post_init__(self) -> None:
        """Prepares the key."""
        self.refresh()

    @property
    def num_prompt(self) -> int:
        """Tokens of the prompt."""
        return len(self.prompt_ids)

    @property
    def token_ids(self) -> Int32:
        """Every known token as of the last refresh."""
        return self.key.token_ids

    def refresh(self) -> None:
        """Makes the key of what is known now. Called whenever it enters the queue and before it is admitted."""
        outputs = np.asarray(self.output_ids, np.int32)
        token_ids = np.concatenate([self.prompt_ids, outputs]) if len(outputs) else self.prompt_ids
        self.key = Key(token_ids, self.extra_key, self.cache_salt)

    def speculate(self, num_drafts: int, num_accepted: int) -> None:
        """Counts drafts that were verified."""
        so_far = self.speculated or Speculated(0, 0, 0)
        self.speculated = Speculated(
            so_far.num_steps + 1, so_far.num_drafts + num_drafts, so_far.num_accepted + num_accepted
        )

    def move(self, state: State) -> None:
        """Goes to the next state; raises IllegalMoveError naming both when the table has no such move."""
        if state not in MOVES[self.state]:
            raise IllegalMoveError(f"request {self.rid}: {self.state.value} cannot become {state.value}")
        self.state = state

    def score_from(self) -> int | None:
        """First position whose logits must still be computed for the prompt's logprobs; None when there is none."""
        if self.logprobs is None or self.logprobs.prompt_from < 0:
            return None
        # The logits at position p - 1 score the token at p; nothing scores the first token.
        first = max(self.logprobs.prompt_from - 1, 0) + len(self.prompt_logprobs)
        return first if first < self.num_prompt - 1 else None

    def hit_limit(self) -> int:
        """Most tokens that may come from the tree: the last one is computed, because its logits are needed."""
        scored = self.score_from()
        last = len(self.token_ids) - 1
        return last if scored is None else min(last, scored)


def request_from(
    message: Generate,
    *,
    eos_ids: frozenset[int],
    constraint: Constraint | None = None,
    low_first: bool,
    now_s: float,
    processed: int,
) -> Request:
    """The request that a checked message asks for."""
    priority = message.priority or 0
    sampling = message.sampling
    eos = frozenset[int]() if sampling.ignore_eos else eos_ids
    return Request(
        rid=message.rid,
        prompt_ids=np.frombuffer(message.prompt, "<i4").astype(np.int32),
        sampling=sampling,
        text=message.text,
        logprobs=message.logprobs,
        cache_salt=message.cache_salt,
        extra_key=message.extra_key,
        routing_key=message.routing_key,
        priority=priority,
        urgency=-priority if low_first else priority,
        stop_ids=eos | frozenset(sampling.stop_token_ids),
        embeds=message.embed,
        arrived_s=min(message.arrived_s, now_s) if message.arrived_s > 0 else now_s,
        processed_at_arrival=processed,
        constraint=constraint,
    )
