"""Grammars: which are known, what requests make of them, and the masks of a step."""

from collections import deque
from collections.abc import Callable

import numpy as np

from corymb.scheduler.constraint import SLOWEST_TOKEN_S, Constraint, Matchers
from corymb.scheduler.door import Limits
from corymb.scheduler.finishing import too_slow
from corymb.scheduler.flight import InFlight
from corymb.scheduler.ledger import Ledger
from corymb.scheduler.messages import Grammar, Learn, Reply, Sampling, TooSlow
from corymb.scheduler.plan import Drafts, Masks
from corymb.scheduler.request import Request, State
from corymb.scheduler.thinking import ThinkingLimit

Condemn = Callable[[TooSlow], None]


class Following:
    """Knows which grammars the matchers have taken in, and lets requests follow them."""

    def __init__(
        self, ledger: Ledger, matchers: Matchers | None, limits: Limits, *, condemn: Condemn | None = None
    ) -> None:
        """Ends requests through `ledger`. Without `matchers` no grammar is ever known. `condemn`: told of requests
        whose grammar is too slow, which goes by this rank's time; without it they end at once."""
        self._condemn = condemn or self.end_slow
        self._ledger = ledger
        self._matchers = matchers
        self._eos_ids = limits.eos_ids
        self._num_words = -(-limits.vocab_size // 32)
        self._learning: deque[Learn] = deque()
        self._replies: list[Reply] = []

    @property
    def is_learning(self) -> bool:
        """Whether a grammar is still being taken in."""
        return bool(self._learning)

    def learn(self, message: Learn) -> None:
        """Begins to take a grammar in."""
        if self._matchers is None:
            self._replies.append(Reply(message.id, False, "This server cannot follow grammars."))
            return
        self._matchers.learn(message.grammar, message.compiled)
        self._learning.append(message)

    def end_slow(self, verdict: TooSlow) -> None:
        """Ends a request, if it is still open."""
        request = self._ledger.live.get(verdict.rid)
        if request is not None:
            self._ledger.end(request, too_slow(verdict.seconds, SLOWEST_TOKEN_S), keep=False)

    def forget(self, grammar: Grammar) -> None:
        """No further request will name it."""
        if self._matchers is not None:
            self._matchers.forget(grammar)

    def take_replies(self) -> list[Reply]:
        """Answers for the grammars that were taken in since the last call."""
        replies, self._replies = self._replies, []
        while self._learning and self._matchers is not None:
            message = self._learning[0]
            failure = self._matchers.learnt(message.grammar)
            if failure is None:
                break
            replies.append(Reply(message.id, not failure, failure))
            self._learning.popleft()
        return replies

    def knows(self, grammar: Grammar | None) -> bool:
        """Whether a request may name it; None names nothing."""
        return grammar is None or (self._matchers is not None and self._matchers.knows(grammar))

    def constraint(self, sampling: Sampling) -> Constraint | None:
        """A constraint at the beginning of what a request must follow; None where it may say anything."""
        limit = ThinkingLimit(sampling.thinking) if sampling.thinking is not None else None
        if sampling.grammar is None:
            return Constraint(None, limit=limit) if limit is not None else None
        assert self._matchers is not None, "the door lets in known grammars only"
        return Constraint(
            self._matchers.open(sampling.grammar),
            limit=limit,
            after=sampling.grammar.after,
            ending_ids=self._eos_ids | frozenset(sampling.stop_token_ids),
            min_new=sampling.min_new_tokens,
        )

    def masks(self, flight: InFlight, drafts: Drafts | None) -> Masks:
        """What the constrained rows of a step may sample, behind their drafts too, now that every step before it is
        settled. A request whose grammar is too slow ends here: it alone."""
        constrained = flight.plan.constrained
        assert constrained is not None, "the step has no constrained rows"
        counts = np.zeros(len(constrained), np.int32) if drafts is None else drafts.counts
        bits = np.empty((len(constrained) + int(counts.sum()), self._num_words), np.int32)
        index: list[int] = []
        places: list[int] = []
        for nth, (position, count) in enumerate(zip(constrained.tolist(), counts.tolist(), strict=True)):
            request = flight.requests[position]
            if request.state is not State.FINISHED:
                said = [] if drafts is None else drafts.token_ids[nth, :count].tolist()
                num_filled = self._fill(request, said, bits[len(index) :])
                index += [position] * num_filled
                places += range(num_filled)
        return Masks(
            np.array(index, np.int32), bits[: len(index)], None if drafts is None else np.array(places, np.int32)
        )

    def _fill(self, request: Request, drafts: list[int], bits: np.ndarray[tuple[int, ...], np.dtype[np.int32]]) -> int:
        """How many masks it filled: none for a request that ended."""
        constraint = request.constraint
        assert constraint is not None, "constrained rows have constraints"
        num_filled = constraint.walk(drafts, bits)
        if constraint.slowest_s > SLOWEST_TOKEN_S:
            self._condemn(TooSlow(request.rid, constraint.slowest_s))
        return num_filled if request.state is not State.FINISHED else 0
