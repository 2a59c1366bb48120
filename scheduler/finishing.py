"""When a request is over."""

from collections.abc import Mapping

from corymb.scheduler.messages import Finish
from corymb.scheduler.request import Request

ABORTED = Finish("abort", message="The request was aborted.")
STOPPED = Finish("stop")  # the detokenizer found a stop string and has told the client which


def finish_after(request: Request, token_id: int) -> Finish | None:
    """Judges a request whose output now ends with `token_id`; None: it goes on.

    Inside the first `min_new_tokens` no token ends it, except the one after which its grammar allows no other. A stop
    token wins over the length limit when both hold.
    """
    num_outputs = len(request.output_ids)
    if request.constraint is not None and request.constraint.is_over:
        return Finish("stop", matched=token_id)
    if token_id in request.stop_ids and num_outputs > request.sampling.min_new_tokens:
        return Finish("stop", matched=token_id)
    if num_outputs >= request.sampling.max_new_tokens:
        return Finish("length")
    return None


def queue_full(limit: int) -> Finish:
    """The queue has no place left."""
    message = f"The server is busy: {limit:,} requests are waiting (--max-queued-requests). Try again later."
    return Finish("error", message=message, status=503, code="queue_full")


def queue_timeout(limit_s: float) -> Finish:
    """It waited too long for its first step."""
    message = f"queue timeout: no capacity within {limit_s:g} s (--queue-timeout). Try again later."
    return Finish("error", message=message, status=503, code="queue_timeout")


def too_large(num_tokens: int, totals: Mapping[str, int]) -> Finish:
    """It does not fit into the pools, of which `totals` says how many tokens each holds, even alone."""
    pools = " and ".join(f"{total:,} tokens ({name})" for name, total in totals.items())
    message = (
        f"The request has reached {num_tokens:,} tokens, more than this server's KV memory of {pools} can hold. "
        "Shorten the prompt or lower max_tokens, or start the server with a larger --max-total-tokens."
    )
    return Finish("error", message=message, status=400, code="kv_pool_too_small")


def astray(token_id: int) -> Finish:
    """Its grammar and its mask disagree: a fault of the server."""
    message = f"Token {token_id} does not follow the request's grammar although its mask allowed it."
    return Finish("error", message=message, status=500, code="internal_error")


def too_slow(seconds: float, limit_s: float) -> Finish:
    """Following its grammar holds up everybody else."""
    message = (
        f"The grammar is too complex: one token took {seconds * 1000:.0f} ms to check and {limit_s * 1000:.0f} ms are "
        "allowed. Simplify it."
    )
    return Finish("error", message=message, status=400, code="grammar_too_complex")


def unusable(reason: str) -> Finish:
    """Its logits are not numbers."""
    message = f"The model's output for this request is unusable: {reason}"
    return Finish("error", message=message, status=500, code="unusable_output")
