"""Who is where: every move of a request between states, and every lease given and taken."""

import numpy as np

from corymb.cache.cache import Cache
from corymb.cache.lease import Lease
from corymb.scheduler.finishing import too_large
from corymb.scheduler.messages import Finish, Logprob
from corymb.scheduler.outbox import Outbox
from corymb.scheduler.queue import Queue
from corymb.scheduler.request import Request, State
from corymb.scheduler.running import Rows, Running


class Ledger:
    """Owns the requests that are not answered yet and their leases.

    A request leaves through `end` and nowhere else, and `end` tells its finish: so every request that was accepted gets
    exactly one. The queue, the running set and the chunk in progress are for others to read.
    """

    def __init__(self, cache: Cache, outbox: Outbox, *, seats: int) -> None:
        """`seats`: how many requests may hold memory at once."""
        self.cache = cache
        self.seats = min(seats, cache.config.num_rows - 1)
        self.live: dict[str, Request] = {}
        self.queue = Queue()
        self.rows = Rows(cache.config.num_rows)
        self.running = Running(self.rows)
        self.chunk: Request | None = None  # the one whose prompt is not wholly planned
        self.committed_step = -1  # results are known up to here
        self.full_since: int | None = None  # step since which the queue's head does not fit; None: worth a try
        self._outbox = outbox

    @property
    def num_seated(self) -> int:
        """Requests that hold a lease."""
        return len(self.running) + (self.chunk is not None)

    def accept(self, request: Request) -> None:
        """A request passed the door."""
        self.live[request.rid] = request
        self.queue.enter(request)
        request.fetch = self.cache.find_stored(request.key, request.hit_limit())
        if request.fetch:
            self.cache.read(request.fetch)

    def seat(self, request: Request, lease: Lease, *, now_s: float) -> None:
        """Waiting to prefilling: the request owns `lease` from now on."""
        request.move(State.PREFILLING)
        self.queue.leave(request)
        self._release(request)
        request.lease = lease
        if request.first_launch_s is None:
            request.first_launch_s = now_s
            request.num_cached = lease.num_cached
        row = lease.row
        self.rows.computed[row] = lease.num_cached
        self.rows.outputs[row] = len(request.output_ids)
        self.rows.pending[row] = 0
        self.rows.max_new[row] = request.sampling.max_new_tokens
        self.rows.last_step[row] = -1
        self.rows.constrained[row] = request.constraint is not None and not request.constraint.is_free

    def cut(self, request: Request) -> None:
        """Some of the tokens of a prefilling request are left for later steps."""
        assert request.state is State.PREFILLING
        assert self.chunk is None or self.chunk is request
        self.chunk = request

    def run(self, request: Request) -> None:
        """Prefilling to running: all known tokens are planned."""
        request.move(State.RUNNING)
        if self.chunk is request:
            self.chunk = None
        self.running.join(self._lease(request).row, request)

    def unseat(self, request: Request) -> None:
        """Back to the tail of the queue. Its memory is needed now, so nothing is kept beyond what the tree has already;
        a token of it that is in flight still counts when it arrives."""
        self._leave_seat(request)
        request.move(State.WAITING)
        self._close(request, keep=False)
        request.refresh()
        self.queue.enter(request)

    def end(
        self,
        request: Request,
        finish: Finish,
        *,
        keep: bool,
        token_ids: list[int] | None = None,
        logprobs: list[Logprob] | None = None,
    ) -> None:
        """Any state to finished, and tells the finish. `keep`: what is computed may stay in the tree."""
        if request.state is State.WAITING:
            self.queue.leave(request)
        else:
            self._leave_seat(request)
        request.move(State.FINISHED)
        self._release(request)
        if request.lease is not None:
            self._close(request, keep=keep)
        del self.live[request.rid]
        self.full_since = None
        self._outbox.tell(request, token_ids or [], finish=finish, logprobs=logprobs)

    def give_up(self, request: Request, num_tokens: int) -> None:
        """Fails a request that does not find room for `num_tokens` although it is alone."""
        totals = {name: pool.total for name, pool in self.cache.usage().items() if name != "recurrent"}
        self.end(request, too_large(num_tokens, totals), keep=False)

    def is_settled(self, request: Request) -> bool:
        """Whether all results of a waiting request have arrived: until then its tokens are not all known."""
        return request.last_step <= self.committed_step

    def share(self, request: Request) -> None:
        """Puts what a request has prefilled into the tree, for others to find."""
        lease = self._lease(request)
        self.cache.commit(lease, request.token_ids[: self.rows.computed[lease.row]])

    def _leave_seat(self, request: Request) -> None:
        if self.chunk is request:
            self.chunk = None
        elif request.state is State.RUNNING:
            self.running.leave(self._lease(request).row)

    def _release(self, request: Request) -> None:
        if request.fetch:
            self.cache.release(request.fetch)
            request.fetch = None

    def _close(self, request: Request, *, keep: bool) -> None:
        lease = self._lease(request)
        request.last_step = int(self.rows.last_step[lease.row])
        kept = self._computed(request, lease) if keep else None
        self.cache.close(lease, kept)
        request.lease = None
        self.full_since = None

    def _computed(self, request: Request, lease: Lease) -> "np.ndarray[tuple[int], np.dtype[np.int32]]":
        # [0, num_known) known   [0, computed) written or in flight: a step in flight may write the last token's KV or,
        # of a token that is not wanted any more, one beyond.
        request.refresh()
        return request.token_ids[: self.rows.computed[lease.row]]

    @staticmethod
    def _lease(request: Request) -> Lease:
        assert request.lease is not None
        return request.lease
