"""The scheduler: messages in, plans out, results in, outputs out. It owns no clock, no socket and no device."""

import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from corymb.cache.cache import Cache
from corymb.scheduler.config import SchedulerConfig
from corymb.scheduler.decoding import Decoding
from corymb.scheduler.door import Limits, check
from corymb.scheduler.finishing import ABORTED, STOPPED, finish_after, queue_full, queue_timeout, unusable
from corymb.scheduler.intake import Intake
from corymb.scheduler.ledger import Ledger
from corymb.scheduler.lineup import Lineup
from corymb.scheduler.messages import Abort, Control, Finish, Generate, Output, Reply, Stats, ToScheduler
from corymb.scheduler.outbox import Outbox
from corymb.scheduler.parts import Part, Piece, put_together
from corymb.scheduler.plan import Sampled, StepPlan
from corymb.scheduler.prefill import Prefill
from corymb.scheduler.pushing import Pushing
from corymb.scheduler.ratio import NewTokenRatio
from corymb.scheduler.request import Request, State, request_from
from corymb.scheduler.tally import Tally
from corymb.scheduler.validity import validate

EXPIRY_INTERVAL_S = 0.05


@dataclass(frozen=True, slots=True)
class InFlight:
    """A plan whose results are not known yet, and whose rows they belong to."""

    plan: StepPlan
    requests: Sequence[Request]


class Scheduler:
    """Decides what every step computes.

    `plan` may be called again before the results of the plans before it are committed: decode rows take the token they
    sampled last from the runner. Results are committed in the order of plans. One step may still be on its way when a
    request ends; its row in that result is skipped.
    """

    def __init__(
        self, config: SchedulerConfig, cache: Cache, limits: Limits, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """Raises ValueError for options that exclude each other."""
        validate(config, cache.config)
        self._config = config
        self._cache = cache
        self._limits = limits
        self._clock = clock
        self._outbox = Outbox()
        self._replies: list[Reply] = []
        self._tally = Tally()
        self._ratio = NewTokenRatio(config.schedule_conservativeness)
        self._ledger = Ledger(cache, self._outbox, seats=config.max_running_requests)
        self._decoding = Decoding(self._ledger, config, self._ratio, self._tally)
        self._prefill = self._make_prefill()
        self._in_flight: deque[InFlight] = deque()
        self._prefilled: list[Request] = []  # took part in the last plan with known tokens, not shared yet
        self._step = 0
        self._expiry_due_s = 0.0

    def _make_prefill(self) -> Prefill:
        config, ledger = self._config, self._ledger
        pushing = None
        if config.enable_priority_scheduling:
            threshold = config.priority_scheduling_preemption_threshold
            pushing = Pushing(ledger, self._ratio, self._tally, threshold=threshold)
        intake = Intake(ledger, pushing, force_miss=config.test_force_cache_miss, clock=self._clock)
        lineup = Lineup(config, self._cache)
        return Prefill(ledger, config, lineup=lineup, intake=intake, ratio=self._ratio, tally=self._tally)

    @property
    def is_idle(self) -> bool:
        """Whether no request is open and no result outstanding: nothing happens until a message comes."""
        return not self._ledger.live and not self._in_flight

    # ── messages ──

    def receive(self, message: ToScheduler) -> None:
        """Takes one message. A request that is refused is answered at once."""
        if isinstance(message, Generate):
            self._enter(message)
        elif isinstance(message, Abort):
            self._abort(message)
        else:
            self._obey(message)

    def _enter(self, message: Generate) -> None:
        capacity = self._cache.usage()["full"].total
        refusal = check(message, self._limits, capacity=capacity, live=self._ledger.live)
        if refusal is not None:
            self._outbox.refuse(message, refusal)
            return
        request = request_from(
            message,
            eos_ids=self._limits.eos_ids,
            low_first=self._config.schedule_low_priority_values_first,
            now_s=self._clock(),
            processed=self._tally.num_prefill_tokens,
        )
        self._ledger.accept(request)
        if self._config.enable_priority_scheduling:
            self._ledger.full_since = None  # it may push somebody back
        self._bound_queue()

    def _bound_queue(self) -> None:
        limit = self._config.max_queued_requests
        if limit is None:
            return
        # Who will be seated by the next plan does not queue; when memory is what is short, nobody will be.
        free_seats = 0 if self._ledger.full_since is not None else self._ledger.seats - self._ledger.num_seated
        if len(self._ledger.queue) - free_seats <= limit:
            return
        # A retracted request was admitted once: it has its place whatever the bound says.
        new = [each for each in self._ledger.queue if each.first_launch_s is None]
        ranked = self._config.enable_priority_scheduling
        last = max(new, key=lambda each: (-each.urgency if ranked else 0, each.entered))
        self._ledger.end(last, queue_full(limit), keep=False)

    def _abort(self, message: Abort) -> None:
        request = self._ledger.live.get(message.rid)
        if request is None:
            return  # it ended while the message was on its way
        self._tally.num_aborted += not message.stopped
        self._ledger.end(request, STOPPED if message.stopped else ABORTED, keep=message.stopped)

    def _obey(self, message: Control) -> None:
        if message.action == "flush_cache":
            self._replies.append(self._flush(message.id))
        elif message.action == "abort_all":
            requests = list(self._ledger.live.values())
            for request in requests:
                self._abort(Abort(request.rid))
            self._replies.append(
                Reply(message.id, True, f"{len(requests)} requests aborted.", {"aborted": len(requests)})
            )
        else:
            self._replies.append(Reply(message.id, True, info=self._info()))

    def _flush(self, reply_id: str) -> Reply:
        if self._cache.flush():
            return Reply(reply_id, True, "The cache is empty.")
        running, waiting = self._ledger.num_seated, len(self._ledger.queue)
        sentence = (
            f"Not flushed: {running} requests are running and {waiting} waiting. Try again when the server is idle."
        )
        return Reply(reply_id, False, sentence)

    def _info(self) -> dict[str, int | float | str | bool | None]:
        info: dict[str, int | float | str | bool | None] = {}
        info["num_running"] = self._ledger.num_seated
        info["num_waiting"] = len(self._ledger.queue)
        info["new_token_ratio"] = self._ratio.value
        info["max_running_requests"] = self._ledger.seats
        info["schedule_policy"] = self._config.schedule_policy
        info["overlap_depth"] = self._config.overlap_depth
        for name, usage in self._cache.usage().items():
            info[f"max_total_{name}_tokens"] = usage.total
            info[f"{name}_tokens_used"] = usage.leased
            info[f"{name}_tokens_evictable"] = usage.evictable
        return info

    # ── a step ──

    def plan(self) -> StepPlan | None:
        """Decides the next step; None when nothing can be computed before a result or a message comes."""
        started_s = time.perf_counter()
        self._expire()
        self._share_prefilled()
        if not self._ledger.num_seated:
            self._ratio.reset()
        parts, pieces = self._gather()
        if not parts:
            return None
        plan = put_together(self._step, parts, [piece.opened for piece in pieces if piece.opened], self._cache)
        self._ledger.rows.last_step[plan.rows] = self._step
        self._in_flight.append(InFlight(plan, [each for part in parts for each in part.requests]))
        self._prefilled = [piece.request for piece in pieces]
        self._step += 1
        self._tally.planned(time.perf_counter() - started_s)
        return plan

    def _expire(self) -> None:
        limit_s, now_s = self._config.queue_timeout_s, self._clock()
        if limit_s is None or now_s < self._expiry_due_s:
            return
        self._expiry_due_s = now_s + EXPIRY_INTERVAL_S
        for request in list(self._ledger.queue):
            if request.first_launch_s is None and now_s - request.arrived_s >= limit_s:
                self._ledger.end(request, queue_timeout(limit_s), keep=False)

    def _share_prefilled(self) -> None:
        for request in self._prefilled:
            if request.lease is not None:
                self._ledger.share(request)
        self._prefilled = []

    def _gather(self) -> tuple[list[Part], list[Piece]]:
        num_retractions = self._tally.num_retractions
        interval = self._config.test_retract_interval
        if interval is not None and self._step % interval == interval - 1:
            self._decoding.retract_one()
        # Rows that decode beside prompts get their slots first; prompts take what is left.
        reserved = self._decoding.reserve() if self._config.enable_mixed_chunk else None
        num_decode = 0 if reserved is None else len(reserved[0].rows)
        may_admit = self._tally.num_retractions == num_retractions  # what was just freed is not for newcomers
        pieces = self._prefill.gather(self._step, num_decode=num_decode, may_admit=may_admit)
        if not pieces and not self._config.enable_mixed_chunk:
            reserved = self._decoding.reserve()
        decode = None if reserved is None else self._decoding.part(reserved)
        parts = [] if decode is None else [decode]
        if pieces:
            parts.append(self._prefill.part(pieces))
        return parts, pieces

    def commit(self, plan: StepPlan, sampled: Sampled) -> None:
        """Takes the results of the oldest plan that has none yet."""
        started_s = time.perf_counter()
        flight = self._in_flight.popleft()
        assert flight.plan.step == plan.step, f"step {flight.plan.step} comes before step {plan.step}"
        self._ledger.committed_step = plan.step
        token_ids, offset = sampled.token_ids.tolist(), 0
        for index, (request, count) in enumerate(zip(flight.requests, sampled.counts.tolist(), strict=True)):
            if request.state is not State.FINISHED:
                self._settle(flight, index, token_ids[offset : offset + count], sampled)
            offset += count
        self._tally.committed(time.perf_counter() - started_s, sampled.forward_s)

    def _settle(self, flight: InFlight, index: int, token_ids: list[int], sampled: Sampled) -> None:
        request = flight.requests[index]
        if index in sampled.errors:
            self._ledger.end(request, unusable(sampled.errors[index]), keep=False)
            return
        if index in sampled.prompt_logprobs:
            request.prompt_logprobs += sampled.prompt_logprobs[index]
        if token_ids:
            self._extend(request, token_ids, index, sampled)
        elif request.sampling.max_new_tokens == 0 and _reaches_end(flight.plan, index, request):
            self._ledger.end(request, Finish("length"), keep=True)

    def _extend(self, request: Request, token_ids: list[int], index: int, sampled: Sampled) -> None:
        finish, taken = None, 0
        for token_id in token_ids:
            request.output_ids.append(token_id)
            taken += 1
            finish = finish_after(request, token_id)
            if finish is not None:
                break
        self._tally.num_generated_tokens += taken
        logprobs = sampled.logprobs.get(index) if request.logprobs is not None else None
        logprobs = logprobs[:taken] if logprobs is not None else None
        if finish is not None:
            self._ledger.end(request, finish, keep=True, token_ids=token_ids[:taken], logprobs=logprobs)
            return
        if request.state is State.WAITING:
            request.refresh()  # retracted while this token was on its way
        self._outbox.tell(request, token_ids, logprobs=logprobs)

    # ── answers ──

    def take_outputs(self) -> list[Output]:
        """Outputs since the last call."""
        return self._outbox.take()

    def take_replies(self) -> list[Reply]:
        """Replies since the last call."""
        replies, self._replies = self._replies, []
        return replies

    def stats(self) -> Stats:
        """A snapshot; step times are those since the last one."""
        usage = self._cache.usage()
        plan_s, commit_s, forward_s = self._tally.take_times()
        return Stats(
            num_running=self._ledger.num_seated,
            num_waiting=len(self._ledger.queue),
            pool_used={name: pool.leased for name, pool in usage.items()},
            pool_evictable={name: pool.evictable for name, pool in usage.items()},
            pool_total={name: pool.total for name, pool in usage.items()},
            num_steps=self._tally.num_steps,
            num_retractions=self._tally.num_retractions,
            num_preemptions=self._tally.num_preemptions,
            num_prefill_tokens=self._tally.num_prefill_tokens,
            num_cached_tokens=self._tally.num_cached_tokens,
            num_generated_tokens=self._tally.num_generated_tokens,
            num_aborted=self._tally.num_aborted,
            new_token_ratio=self._ratio.value,
            plan_s=plan_s,
            commit_s=commit_s,
            forward_s=forward_s,
        )


def _reaches_end(plan: StepPlan, index: int, request: Request) -> bool:
    return int(plan.starts[index] + plan.widths[index]) == request.num_prompt
