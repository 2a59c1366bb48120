"""What a request's output must follow, and how far it is in it."""

import time
from collections.abc import Iterable
from copy import copy
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from corymb.scheduler.messages import Grammar
from corymb.scheduler.plan import Int32
from corymb.scheduler.thinking import ThinkingLimit

SLOWEST_TOKEN_S = 0.05  # a grammar may take so long for one token: every other request waits for it
_ALL = np.int32(-1)
_BITS = (np.uint32(1) << np.arange(32, dtype=np.uint32)).view(np.int32)  # by place in a word


class Matcher(Protocol):
    """Follows one output through a compiled grammar."""

    def accept(self, token_id: int) -> bool:
        """Moves on by one token; False, and nothing moves, where it cannot come here."""
        ...

    def fill(self, bits: Int32) -> None:
        """Sets the bits [W] of the tokens that may come next, and clears the others."""
        ...

    def rollback(self, count: int) -> None:
        """Takes back the last `count` tokens that it accepted."""
        ...

    @property
    def is_over(self) -> bool:
        """Whether it has accepted a token that ends the text."""
        ...


class Matchers(Protocol):
    """Knows compiled grammars, and makes matchers of them."""

    def learn(self, grammar: Grammar, compiled: bytes) -> None:
        """Begins to take a compiled grammar in, and returns."""
        ...

    def learnt(self, grammar: Grammar) -> str | None:
        """None while it is still being taken in; then "" or the reason why it cannot be used."""
        ...

    def knows(self, grammar: Grammar) -> bool:
        """Whether matchers of it can be made; waits until it is taken in."""
        ...

    def open(self, grammar: Grammar) -> Matcher:
        """A matcher at the beginning of a grammar that is known."""
        ...

    def forget(self, grammar: Grammar) -> None:
        """Drops a grammar; its matchers go on."""
        ...


class Constraint:
    """Owns a request's matcher.

    It survives a retraction: it stands at the last output token that is settled, wherever the request's memory is.
    """

    # outputs   [0, …) free until `after` has come: anything but an end   […) inside the grammar

    def __init__(
        self,
        matcher: Matcher | None,
        *,
        after: tuple[int, ...] = (),
        ending_ids: Iterable[int] = (),
        min_new: int = 0,
        limit: ThinkingLimit | None = None,
    ) -> None:
        """`matcher` None: only `limit` holds. `ending_ids` may not come inside the first `min_new` tokens, unless the
        grammar allows nothing else."""
        self._matcher = matcher
        self._limit = limit
        self._awaited = after
        self._tail: tuple[int, ...] = ()  # the last output tokens, while it is still free
        self._ending = np.array(sorted(ending_ids), np.int64)
        self._min_new = min_new
        self._num_outputs = 0
        self.slowest_s = 0.0  # of all tokens so far, on the processor

    @property
    def is_over(self) -> bool:
        """Whether the output is complete."""
        return self._matcher is not None and self._matcher.is_over

    @property
    def is_free(self) -> bool:
        """Whether any token may come, from now on."""
        return self._matcher is None and (self._limit is None or self._limit.is_over)

    def advance(self, token_id: int) -> bool:
        """The output has grown by one token; False where the grammar does not allow it."""
        self._num_outputs += 1
        if self._limit is not None:
            self._limit.advance(token_id)
        if self._awaited:
            self._tail = (*self._tail, token_id)[-len(self._awaited) :]
            if self._tail == self._awaited:
                self._awaited = ()
            return True
        if self._matcher is None:
            return True
        begun_s = time.thread_time()
        accepted = self._matcher.accept(token_id)
        self.slowest_s = max(self.slowest_s, time.thread_time() - begun_s)
        return accepted

    def walk(self, drafts: Iterable[int], bits: Int32) -> int:
        """Fills bits [P + 1, W]: of the tokens that may come next, and of those behind each of up to P `drafts`, as far
        as drafts may come. Returns how many it filled; stands where it stood."""
        before = self._awaited, self._tail, self._num_outputs, copy(self._limit)
        self.fill(bits[0])
        num_filled, num_accepted = 1, 0
        for token_id in drafts:
            asks = self._matcher is not None and not self._awaited
            if not _holds(bits[num_filled - 1], token_id) or not self.advance(token_id):
                break
            num_accepted += asks
            if self.is_over:
                break  # the request ends here
            self.fill(bits[num_filled])
            num_filled += 1
        if num_accepted and self._matcher is not None:
            self._matcher.rollback(num_accepted)
        self._awaited, self._tail, self._num_outputs, self._limit = before
        return num_filled

    def fill(self, bits: Int32) -> None:
        """Sets the bits [W] of the tokens that may come next."""
        forced = self._limit.forced if self._limit is not None else None
        if forced is not None:
            bits[:] = 0
            bits[forced >> 5] = _BITS[forced & 31]
            return
        if self._matcher is None:
            bits[:] = _ALL
            return
        if self._awaited:
            bits[:] = _ALL
            _clear(bits, self._ending)
            return
        begun_s = time.thread_time()
        self._matcher.fill(bits)
        self.slowest_s = max(self.slowest_s, time.thread_time() - begun_s)
        if self._num_outputs < self._min_new:
            longer = bits.copy()
            _clear(longer, self._ending)
            if longer.any():
                bits[:] = longer


def _holds(bits: Int32, token_id: int) -> bool:
    return bool(bits[token_id >> 5] & _BITS[token_id & 31])


def _clear(bits: Int32, token_ids: NDArray[np.int64]) -> None:
    np.bitwise_and.at(bits, token_ids >> 5, ~(np.int32(1) << (token_ids & 31).astype(np.int32)))
