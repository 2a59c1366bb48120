"""Where messages arrive: lets requests in or refuses them, ends them on demand, and obeys the operator."""

from collections.abc import Callable

from corymb.scheduler.config import SchedulerConfig
from corymb.scheduler.door import Limits, check
from corymb.scheduler.finishing import ABORTED, STOPPED, queue_full, queue_timeout
from corymb.scheduler.following import Following
from corymb.scheduler.ledger import Ledger
from corymb.scheduler.messages import Abort, Control, Forget, Generate, Learn, Reply, TooSlow, ToScheduler
from corymb.scheduler.outbox import Outbox
from corymb.scheduler.request import request_from
from corymb.scheduler.tally import Tally

EXPIRY_INTERVAL_S = 0.05


class Reception:
    """Guards the queue: its door, its bound and its time limit."""

    def __init__(
        self,
        ledger: Ledger,
        outbox: Outbox,
        tally: Tally,
        following: Following,
        *,
        config: SchedulerConfig,
        limits: Limits,
        clock: Callable[[], float],
    ) -> None:
        """`following` knows the grammars; `clock`: the one that arrival times are read from."""
        self._ledger = ledger
        self._outbox = outbox
        self._tally = tally
        self._following = following
        self._config = config
        self._limits = limits
        self._clock = clock
        self._capacity = ledger.cache.usage()["full"].total
        self._expiry_due_s = 0.0
        self._replies: list[Reply] = []
        self.is_paused = False  # nothing is planned

    def receive(self, message: ToScheduler) -> None:
        """Takes one message."""
        if isinstance(message, Generate):
            self._enter(message)
        elif isinstance(message, Abort):
            self._abort(message)
        elif isinstance(message, Learn):
            self._following.learn(message)
        elif isinstance(message, Forget):
            self._following.forget(message.grammar)
        elif isinstance(message, TooSlow):
            self._following.end_slow(message)
        else:
            self._replies.append(self._obey(message))

    def take_replies(self) -> list[Reply]:
        """Replies since the last call."""
        replies, self._replies = [*self._replies, *self._following.take_replies()], []
        return replies

    def expire(self) -> None:
        """Ends requests that have waited too long for their first step."""
        limit_s, now_s = self._config.queue_timeout_s, self._clock()
        if limit_s is None or now_s < self._expiry_due_s:
            return
        self._expiry_due_s = now_s + EXPIRY_INTERVAL_S
        for request in list(self._ledger.queue):
            if request.first_launch_s is None and now_s - request.arrived_s >= limit_s:
                self._ledger.end(request, queue_timeout(limit_s), keep=False)

    def _enter(self, message: Generate) -> None:
        known = self._following.knows(message.sampling.grammar)
        refusal = check(message, self._limits, capacity=self._capacity, live=self._ledger.live, knows_grammar=known)
        if refusal is not None:
            self._outbox.refuse(message, refusal)
            return
        request = request_from(
            message,
            eos_ids=self._limits.eos_ids,
            constraint=self._following.constraint(message.sampling),
            low_first=self._config.schedule_low_priority_values_first,
            now_s=self._clock(),
            processed=self._tally.num_prefill_tokens,
        )
        self._ledger.accept(request)
        self._keep_bound()
        if self._config.enable_priority_scheduling:
            self._ledger.full_since = None  # it may push somebody back

    def _keep_bound(self) -> None:
        limit = self._config.max_queued_requests
        if limit is None:
            return
        # Who will be seated by the next plan does not queue; while memory is what is short, nobody will be.
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

    def _obey(self, order: Control) -> Reply:
        match order.action:
            case "flush_cache":
                return self._flush(order.id)
            case "picture_tree":
                return Reply(order.id, True, tree=self._ledger.cache.picture(order.max_nodes))
            case "pause":
                self.is_paused = True
                return Reply(order.id, True, "Paused: what runs keeps its memory.")
            case "retract":
                self.is_paused = True
                return Reply(order.id, True, f"Paused: {self._retract()} requests went back to the queue.")
            case "continue":
                self.is_paused = False
                return Reply(order.id, True, "Goes on.")
            case _:
                return Reply(order.id, False, f"Nobody here can {order.action}.")

    def _retract(self) -> int:
        """Takes everybody's memory; the tree keeps what it has of them."""
        seated = [*self._ledger.running, *([] if self._ledger.chunk is None else [self._ledger.chunk])]
        for request in seated:
            self._ledger.unseat(request)
        self._tally.num_retractions += len(seated)
        return len(seated)

    def _flush(self, reply_id: str) -> Reply:
        if self._ledger.cache.flush():
            self._ledger.full_since = None
            return Reply(reply_id, True, "The cache is empty.")
        running, waiting = self._ledger.num_seated, len(self._ledger.queue)
        counts = f"{running} requests are running and {waiting} waiting"
        return Reply(reply_id, False, f"Not flushed: {counts}. Try again when the server is idle, or abort them.")
