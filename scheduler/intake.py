"""Admission: takes waiting requests into the step, in order, while the budget lasts."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from corymb.cache.lease import Lease
from corymb.scheduler.admission import OUTPUT_CLIP, Ask, Budget, Free, Stop, survives
from corymb.scheduler.beginnings import Beginnings
from corymb.scheduler.cuts import Cuts
from corymb.scheduler.ledger import Ledger
from corymb.scheduler.parts import Piece
from corymb.scheduler.plan import Int32, Opened
from corymb.scheduler.prefetching import Prefetching
from corymb.scheduler.pushing import Pushing
from corymb.scheduler.request import Request

MOST_COMING = 8  # requests that wait for the host; those behind are not looked at: to tell costs walks of the tree


@dataclass(frozen=True, slots=True)
class Candidate:
    """Admitted by the budget; its slots are not reserved yet, and it still stands in the queue."""

    request: Request
    lease: Lease
    width: int


@dataclass(slots=True)
class Round:
    """One planning pass: what it may still take, what it computes already, and whom it lets in."""

    step: int
    budget: Budget
    beginnings: Beginnings
    candidates: list[Candidate] = field(default_factory=list)
    num_fetching: int = 0  # requests that wait for storage or the host
    num_coming: int = 0  # those of them that wait for the host
    num_held_back: int = 0  # copies that wait a step for a beginning; their seats and memory are kept for them


def ask_of(request: Request, start: int, survives: bool | None = None, branch: int = 0) -> Ask:
    """What `request` needs when `start` of its tokens are cached."""
    left = request.sampling.max_new_tokens - len(request.output_ids)
    return Ask(start, len(request.token_ids) - start, min(left, OUTPUT_CLIP), survives, branch)


class Intake:
    """Opens leases for waiting requests, judges them by the budget, reserves their slots and seats them."""

    def __init__(
        self,
        ledger: Ledger,
        pushing: Pushing | None,
        prefetching: Prefetching,
        *,
        force_miss: bool,
        clock: Callable[[], float],
    ) -> None:
        """`pushing`: None where no request may push another back; `clock`: the one that arrival times are read from."""
        self._ledger = ledger
        self._cache = ledger.cache
        self._cuts = Cuts.of(ledger.cache.config)
        self._pushing = pushing
        self._prefetching = prefetching
        self._force_miss = force_miss
        self._clock = clock

    def admit(self, arranged: Sequence[Request], now: Round) -> list[Piece]:
        """The first pieces of the requests that got in; they have left the queue."""
        stop: Stop | None = None
        for request in arranged:
            if now.num_coming == MOST_COMING:
                break
            if not self._ledger.is_settled(request):
                continue  # retracted a moment ago: its last token is still on the way
            if self._prefetching.waits(request) or self._waits_for_host(request, now):
                now.num_fetching += 1
                continue
            stop = self._try(request, now)
            if stop is Stop.MEMORY and self._push_for(request, now):
                stop = self._try(request, now)
            if stop is Stop.REPEAT:
                self._hold_back(request, now)
                continue
            if stop is not None:
                break
        num_candidates = len(now.candidates)
        pieces = self._reserve(now.candidates)
        # Whoever got in had its output reserved whole; from the next step on only a share of it is, so it pays to look
        # again then. Where nobody got in, nothing changes before something is released, or a copy's beginning is there.
        if not pieces and not now.num_held_back and not now.num_fetching and (stop is Stop.MEMORY or num_candidates):
            self._ledger.full_since = now.step
        return pieces

    def _waits_for_host(self, request: Request, now: Round) -> bool:
        """Where others compute meanwhile, and it could be let in."""
        if not self._ledger.num_seated or not self._has_seat(now):
            return False
        coming = self._prefetching.is_coming(request)
        now.num_coming += coming
        return coming

    def _has_seat(self, now: Round) -> bool:
        return self._ledger.num_seated + len(now.candidates) + now.num_held_back < self._ledger.seats

    def _hold_back(self, request: Request, now: Round) -> None:
        """A copy finds in the next step's tree what another computes now. Those behind it need not wait, but must leave
        it its seat and its memory."""
        ask = ask_of(request, 0)
        now.num_held_back += 1
        if self._cache.config.num_states:
            self._leave_state_for(request, now)
        now.budget.reserve(full=ask.extend + ask.output_room, states=1)

    def _leave_state_for(self, copy: Request, now: Round) -> None:
        """Whoever computes the beginning of a copy must leave a state where the copy goes on, or it would find none."""
        limit = self._limit(copy)
        shared = {
            i: self._cuts.common(each.request.key, copy.key, limit)
            for i, each in enumerate(now.candidates)
            if not each.lease.branch  # else it leaves a state elsewhere, or there already
        }
        if not shared:
            return
        best = max(shared, key=lambda i: shared[i])
        each, branch = now.candidates[best], shared[best]
        start, last = each.lease.num_cached, len(each.request.token_ids)
        if not start < branch < last:
            return
        if branch < start + each.width:
            if start + each.width == last and not now.budget.claim_cut():
                return
            now.candidates[best] = Candidate(each.request, each.lease, branch - start)
        self._cache.expect(each.lease, branch)

    def _limit(self, request: Request) -> int:
        return 0 if self._force_miss else request.hit_limit()

    def _free(self) -> Free:
        available = self._cache.available()
        return Free(available.full, available.sliding, available.states)

    def _push_for(self, request: Request, now: Round) -> bool:
        if self._pushing is None:
            return False
        ask = ask_of(request, self._cache.match(request.key, self._limit(request)))
        return self._pushing.push_for(request, now.budget.shortfall(ask, self._free()), now.budget)

    def _try(self, request: Request, now: Round) -> Stop | None:
        if not self._has_seat(now):
            return Stop.MEMORY
        lease = self._cache.open(request.key, self._limit(request), priority=request.urgency, fetch=request.fetch)
        if lease is None:
            return Stop.MEMORY
        verdict = self._judge(request, lease, now)
        if isinstance(verdict, Stop):
            self._cache.close(lease, None)
            return verdict
        now.candidates.append(Candidate(request, lease, verdict))
        now.beginnings.add(request.key)
        return None

    def _judge(self, request: Request, lease: Lease, now: Round) -> int | Stop:
        if now.beginnings.repeats(request.key, lease.num_cached, self._limit(request)):
            return Stop.REPEAT
        # Read only now: locking the prefix has taken it out of what can be evicted.
        free = self._free()
        survives = self._simulate(request, free.full, now.candidates)
        ask = ask_of(request, lease.num_cached, survives, lease.branch)
        return now.budget.admit(ask, free, alone=not self._ledger.num_seated and not now.candidates)

    def _simulate(self, request: Request, free: int, candidates: Sequence[Candidate]) -> bool | None:
        """Where nothing is cached and EOS is ignored, the future is known well enough to play it through."""
        if self._cache.config.enable_prefix_cache or not request.sampling.ignore_eos:
            return None
        rows = self._ledger.rows
        running = self._ledger.running.everyone().rows
        waiting = [*(each.request for each in candidates), request]
        left = [each.sampling.max_new_tokens - len(each.output_ids) for each in waiting]
        sizes = [len(each.token_ids) for each in waiting]
        left += (rows.max_new[running] - rows.outputs[running]).tolist()
        return survives(free - sum(sizes), left, sizes + rows.computed[running].tolist())

    def _reserve(self, candidates: list[Candidate]) -> list[Piece]:
        """Slots for the candidates; those that do not fit after all, latest first, stay in the queue."""
        while candidates:
            rows = np.array([each.lease.row for each in candidates], np.int32)
            widths = np.array([each.width for each in candidates], np.int32)
            slots = self._cache.grow(rows, widths)
            if slots is not None:
                return self._seat(candidates, np.split(slots, np.cumsum(widths)[:-1]))
            self._narrow_or_drop(candidates)
        return []

    def _narrow_or_drop(self, candidates: list[Candidate]) -> None:
        last = candidates.pop()
        if candidates or self._ledger.num_seated:
            self._cache.close(last.lease, None)
            return
        # Alone: it will never have more room, so only a shorter chunk can help.
        width = self._cuts.narrower(last.lease.num_cached, last.width)
        if width:
            candidates.append(Candidate(last.request, last.lease, width))
            return
        self._cache.close(last.lease, None)
        self._ledger.give_up(last.request, len(last.request.token_ids))

    def _seat(self, candidates: Sequence[Candidate], slots: Sequence[Int32]) -> list[Piece]:
        now_s = self._clock()
        pieces = []
        for each, own in zip(candidates, slots, strict=True):
            request, lease = each.request, each.lease
            self._ledger.seat(request, lease, now_s=now_s)
            outputs = np.array(request.output_ids, np.int32)
            opened = Opened(lease.row, request.prompt_ids, outputs, request.sampling, request.logprobs, request.embeds)
            pieces.append(Piece(request, lease.row, lease.num_cached, each.width, own, opened))
        return pieces
