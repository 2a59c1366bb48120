"""The scheduler: messages in, plans out, results in, outputs out. It owns no socket and no device."""

import time
from collections import deque
from collections.abc import Callable

from corymb.cache.cache import Cache
from corymb.cache.writes import HostCopies
from corymb.scheduler.config import SchedulerConfig
from corymb.scheduler.constraint import Matchers
from corymb.scheduler.decoding import Decoding
from corymb.scheduler.door import Limits
from corymb.scheduler.drafting import Drafting
from corymb.scheduler.flight import InFlight
from corymb.scheduler.following import Condemn, Following
from corymb.scheduler.intake import Intake
from corymb.scheduler.ledger import Ledger
from corymb.scheduler.lineup import Lineup
from corymb.scheduler.messages import Output, Reply, Stats, ToScheduler
from corymb.scheduler.outbox import Outbox
from corymb.scheduler.parts import Part, Piece, put_together
from corymb.scheduler.plan import Drafts, Masks, Sampled, StepPlan
from corymb.scheduler.prefetching import Prefetching
from corymb.scheduler.prefill import Prefill
from corymb.scheduler.pushing import Pushing
from corymb.scheduler.ratio import NewTokenRatio
from corymb.scheduler.reception import Reception
from corymb.scheduler.request import Request
from corymb.scheduler.settling import Settling
from corymb.scheduler.tally import Tally, stats_of
from corymb.scheduler.validity import validate
from corymb.scheduler.windows import WindowPolicy


class Scheduler:
    """Decides what every step computes.

    `plan` may be called again before the results of the plan before it are committed: decode rows take the token they
    sampled last from the runner. Results are committed in the order of plans. A step may still be on its way when one
    of its requests ends; that row of its result is skipped.
    """

    def __init__(
        self,
        config: SchedulerConfig,
        cache: Cache,
        limits: Limits,
        *,
        matchers: Matchers | None = None,
        windows: WindowPolicy | None = None,
        condemn: Condemn | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`matchers` follow grammars; without them requests that name one are refused. `windows`: of a runner that
        drafts. `condemn`: see Following; with several ranks it tells all of them. `clock` is the one that arrival times
        are read from. Raises ValueError for options that cannot work."""
        validate(config, enable_prefix_cache=cache.config.enable_prefix_cache, speculates=windows is not None)
        self._config = config
        self._cache = cache
        self._clock = clock
        self._outbox = Outbox()
        self._tally = Tally()
        self._ratio = NewTokenRatio(config.schedule_conservativeness)
        self._ledger = Ledger(cache, self._outbox, seats=config.max_running_requests)
        self._following = Following(self._ledger, matchers, limits, condemn=condemn)
        policy, force_miss = config.hicache_storage_prefetch_policy or "timeout", config.test_force_cache_miss
        self._prefetching = Prefetching(cache, policy, force_miss=force_miss, clock=clock)
        self._reception = Reception(
            self._ledger, self._outbox, self._tally, self._following, config=config, limits=limits, clock=clock
        )
        self._windows = windows
        drafting = Drafting(cache, self._ledger.rows, windows) if windows else None
        self._decoding = Decoding(self._ledger, config, self._ratio, self._tally, drafting=drafting)
        self._prefill = self._make_prefill()
        self._settling = Settling(self._ledger, self._outbox, self._tally)
        self._in_flight: deque[InFlight] = deque()
        self._prefilled: list[Request] = []  # took part in the last plan with known tokens, not shared yet
        self._step = 0

    def _make_prefill(self) -> Prefill:
        config, ledger = self._config, self._ledger
        pushing = None
        if config.enable_priority_scheduling:
            threshold = config.priority_scheduling_preemption_threshold
            pushing = Pushing(ledger, self._ratio, self._tally, threshold=threshold)
        intake = Intake(ledger, pushing, self._prefetching, force_miss=config.test_force_cache_miss, clock=self._clock)
        lineup = Lineup(config, self._cache)
        return Prefill(ledger, config, lineup=lineup, intake=intake, ratio=self._ratio, tally=self._tally)

    @property
    def is_idle(self) -> bool:
        """Whether no request is open and no result outstanding: nothing happens until a message comes."""
        return not self._ledger.live and not self._in_flight and not self._following.is_learning

    @property
    def is_resting(self) -> bool:
        """Whether nothing happens until a message comes, though requests may be open: idle, or paused."""
        return self.is_idle or (self._reception.is_paused and not self._in_flight)

    def receive(self, message: ToScheduler) -> None:
        """Takes one message. A request that is refused is answered at once."""
        self._reception.receive(message)

    def plan(self) -> StepPlan | None:
        """Decides the next step; None when nothing can be computed before a result or a message comes."""
        started_s = time.perf_counter()
        self._reception.expire()
        self._share_prefilled()
        if self._reception.is_paused:
            return None
        if not self._ledger.num_seated:
            self._ratio.reset()
        parts, pieces = self._gather()
        if not parts:
            return None
        opened, rows = [piece.opened for piece in pieces if piece.opened], self._ledger.rows
        if self._windows:
            for each in opened:
                self._windows.open(each.row, self._step)
        plan = put_together(self._step, parts, opened, self._cache, rows.constrained)
        rows.last_step[plan.rows] = self._step
        self._in_flight.append(InFlight(plan, [each for part in parts for each in part.requests]))
        self._prefilled = [piece.request for piece in pieces]
        self._step += 1
        self._tally.planned(time.perf_counter() - started_s)
        return plan

    def _share_prefilled(self) -> None:
        # The step is only launched, but whoever reads these slots comes after it.
        for request in self._prefilled:
            if request.lease is not None:
                self._ledger.share(request)
        self._prefilled = []

    def _gather(self) -> tuple[list[Part], list[Piece]]:
        mixed, num_retractions = self._config.enable_mixed_chunk, self._tally.num_retractions
        interval = self._config.test_retract_interval
        if interval is not None and self._step % interval == interval - 1:
            self._decoding.retract_one()
        # Rows that decode beside prompts get their slots first; prompts take what is left.
        reserved = self._decoding.reserve(self._step) if mixed else None
        num_decode = 0 if reserved is None else len(reserved.batch.rows)
        # What was freed for those who run is not for newcomers.
        may_admit = self._tally.num_retractions == num_retractions
        pieces = self._prefill.gather(self._step, num_decode=num_decode, may_admit=may_admit)
        if not mixed and not pieces:
            reserved = self._decoding.reserve(self._step)
        decode = None if reserved is None else self._decoding.part(reserved)
        parts = [] if decode is None else [decode]
        if pieces:
            parts.append(self._prefill.part(pieces))
        return parts, pieces

    def masks(self, plan: StepPlan, drafts: Drafts | None = None) -> Masks:
        """What the constrained rows of the oldest plan without results may sample, behind their `drafts` too: all
        before it are committed."""
        flight = self._in_flight[0]
        assert flight.plan.step == plan.step, f"step {flight.plan.step} comes before step {plan.step}"
        return self._following.masks(flight, drafts)

    def commit(self, plan: StepPlan, sampled: Sampled) -> None:
        """Takes the results of the oldest plan that has none yet."""
        started_s = time.perf_counter()
        flight = self._in_flight.popleft()
        assert flight.plan.step == plan.step, f"step {flight.plan.step} comes before step {plan.step}"
        self._cache.copied(plan.copies.number if sampled.copied is None else sampled.copied)
        if self._windows:
            expected_s = self._windows.learn(plan, sampled)
            if expected_s is not None:
                self._tally.foreseen(expected_s, sampled.forward_s)
        self._settling.settle(flight, sampled)
        self._tally.committed(time.perf_counter() - started_s, sampled.forward_s)

    def take_copies(self) -> HostCopies | None:
        """Copies that no step takes along: none is on its way. `copied` says that they are done. None: all are."""
        return self._cache.take_late_copies()

    def copied(self, copies: HostCopies) -> None:
        """What `take_copies` gave is done."""
        self._cache.copied(copies.number)

    def take_outputs(self) -> list[Output]:
        """Outputs since the last call."""
        return self._outbox.take()

    def take_replies(self) -> list[Reply]:
        """Replies since the last call."""
        return self._reception.take_replies()

    def stats(self) -> Stats:
        """A snapshot; step times are those since the last one."""
        return stats_of(self._tally, self._ledger, self._ratio)
