"""What a step's results mean for its requests."""

from corymb.scheduler.finishing import astray, finish_after, unusable
from corymb.scheduler.flight import InFlight
from corymb.scheduler.ledger import Ledger
from corymb.scheduler.messages import Finish
from corymb.scheduler.outbox import Outbox
from corymb.scheduler.plan import Sampled, StepPlan
from corymb.scheduler.request import Request, State
from corymb.scheduler.tally import Tally


class Settling:
    """Appends tokens, finds out who is finished, and tells the rest what they got."""

    def __init__(self, ledger: Ledger, outbox: Outbox, tally: Tally) -> None:
        """Ends requests through `ledger`."""
        self._ledger = ledger
        self._outbox = outbox
        self._tally = tally

    def settle(self, flight: InFlight, sampled: Sampled) -> None:
        """Takes the results of one step, in order of steps. A request that ended since its launch is skipped; one that
        lost its row since keeps what the step gave it."""
        self._ledger.committed_step = flight.plan.step
        if sampled.drafted is not None:
            self._tally.speculated(sampled.drafted.allowed, sampled.counts - 1)
            if sampled.drafted.blocks is not None:
                self._tally.estimated(sampled.drafted.blocks)
        token_ids, offset = sampled.token_ids.tolist(), 0
        for index, (request, count) in enumerate(zip(flight.requests, sampled.counts.tolist(), strict=True)):
            if request.state is not State.FINISHED:
                self._settle_row(flight, index, token_ids[offset : offset + count], sampled)
            offset += count

    def _settle_row(self, flight: InFlight, index: int, token_ids: list[int], sampled: Sampled) -> None:
        request = flight.requests[index]
        if flight.plan.windows is not None and request.lease is not None:
            most = int(flight.plan.windows.most[index])
            self._progress(flight.plan.step, request.lease.row, len(token_ids) - 1, most)
        if sampled.drafted is not None and sampled.drafted.allowed[index]:
            request.speculate(int(sampled.drafted.allowed[index]), len(token_ids) - 1)
        if index in sampled.errors:
            self._ledger.end(request, unusable(sampled.errors[index]), keep=False)
            return
        if index in sampled.prompt_logprobs:
            request.prompt_logprobs += sampled.prompt_logprobs[index]
        request.embedding = sampled.embeddings.get(index)
        if token_ids:
            self._extend(request, token_ids, index, sampled)
        elif request.sampling.max_new_tokens == 0 and _reaches_end(flight.plan, index, request):
            self._ledger.end(request, Finish("length"), keep=True)

    def _progress(self, step: int, row: int, num_accepted: int, most: int) -> None:
        """A step of the row is not in flight any more: of its drafts it is known how many count."""
        rows = self._ledger.rows
        if rows.last_step[row] > step:
            self._ledger.cache.settle_state(row, num_accepted, most)
        rows.computed[row] += num_accepted
        rows.outputs[row] += num_accepted
        rows.pending[row] -= most

    def _extend(self, request: Request, token_ids: list[int], index: int, sampled: Sampled) -> None:
        finish, taken = None, 0
        for token_id in token_ids:
            request.output_ids.append(token_id)
            taken += 1
            follows = request.constraint is None or request.constraint.advance(token_id)
            finish = finish_after(request, token_id) if follows else astray(token_id)
            if finish is not None:
                break
        if request.constraint is not None and request.constraint.is_free and request.lease is not None:
            self._ledger.rows.constrained[request.lease.row] = False  # later steps need not wait for its mask
        self._tally.num_generated_tokens += taken
        logprobs = sampled.logprobs.get(index) if request.logprobs is not None else None
        if finish is not None:
            cut = None if logprobs is None else logprobs[:taken]
            self._ledger.end(request, finish, keep=True, token_ids=token_ids[:taken], logprobs=cut)
            return
        if request.state is State.WAITING:
            request.refresh()  # it was retracted while this token was on its way
        self._outbox.tell(request, token_ids, logprobs=logprobs)


def _reaches_end(plan: StepPlan, index: int, request: Request) -> bool:
    return int(plan.starts[index] + plan.widths[index]) == request.num_prompt
