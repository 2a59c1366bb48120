"""Every refusal the HTTP surface can give: one table of kinds, one JSON shape."""

import contextlib
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import msgspec

from corymb.scheduler.messages import Finish

MAX_MESSAGE_CHARS = 2_000  # an error never echoes a request back: bodies stay far under 16 KB
RETRY_AFTER_S = 1


@dataclass(frozen=True, slots=True)
class Kind:
    """One row of the table: HTTP status, OpenAI `type`, machine-readable `code`, and when it is given."""

    status: int
    type: str
    code: str
    about: str


KINDS: Mapping[str, Kind] = {
    kind.code: kind
    for kind in (
        Kind(400, "invalid_request_error", "invalid_http", "What arrived is not HTTP/1.1."),
        Kind(400, "invalid_request_error", "invalid_json", "The body is not a JSON object."),
        Kind(400, "invalid_request_error", "invalid_value", "`param` names a field whose value is refused."),
        Kind(400, "invalid_request_error", "unsupported_parameter", "`param` names a field this server cannot honour."),
        Kind(400, "invalid_request_error", "unsupported_by_model", "The served model cannot do what was asked."),
        Kind(400, "invalid_request_error", "context_length_exceeded", "Prompt and `max_tokens` exceed the context."),
        Kind(400, "invalid_request_error", "kv_pool_too_small", "The prompt does not fit the server's KV pool."),
        Kind(400, "invalid_request_error", "template_error", "The model's chat template refused the messages."),
        Kind(400, "invalid_request_error", "grammar_too_complex", "A schema or grammar takes too much to follow."),
        Kind(400, "invalid_request_error", "unsupported_schema", "A schema has a keyword that cannot be enforced."),
        Kind(400, "invalid_request_error", "duplicate_rid", "A request with this `rid` is still open."),
        Kind(401, "authentication_error", "invalid_api_key", "No key, or a wrong one."),
        Kind(403, "permission_error", "admin_key_required", "The route is for the operator's key only."),
        Kind(404, "invalid_request_error", "model_not_found", "No served model has this name."),
        Kind(404, "invalid_request_error", "route_not_found", "No such route."),
        Kind(404, "invalid_request_error", "rid_not_found", "No open request has this `rid`."),
        Kind(404, "invalid_request_error", "response_not_found", "No response with this id is stored, or running."),
        Kind(405, "invalid_request_error", "method_not_allowed", "The `Allow` header lists the right methods."),
        Kind(408, "invalid_request_error", "request_timeout", "The body did not arrive in time."),
        Kind(409, "invalid_request_error", "cache_in_use", "Requests are running, so the cache cannot be flushed."),
        Kind(409, "invalid_request_error", "scheduler_busy", "The scheduler is in a long step and obeys after it."),
        Kind(409, "invalid_request_error", "order_refused", "The scheduler cannot do now what it was told."),
        Kind(413, "invalid_request_error", "request_too_large", "The body is larger than the server reads."),
        Kind(415, "invalid_request_error", "unsupported_media_type", "Bodies must be `application/json`."),
        Kind(429, "rate_limit_error", "rate_limited", "Too many requests; see `Retry-After`."),
        Kind(431, "invalid_request_error", "headers_too_large", "Request line and headers are larger than allowed."),
        Kind(499, "invalid_request_error", "request_aborted", "The request was ended before it gave anything."),
        Kind(500, "server_error", "internal_error", "A fault of the server; its log has the details."),
        Kind(500, "server_error", "unusable_output", "The model's output for this request was not a number."),
        Kind(503, "service_unavailable", "queue_full", "The waiting queue is full; see `Retry-After`."),
        Kind(503, "service_unavailable", "queue_timeout", "The request waited longer than the queue allows."),
        Kind(503, "service_unavailable", "overloaded", "More requests than the server can follow; see `Retry-After`."),
        Kind(503, "service_unavailable", "not_ready", "The model is still loading."),
        Kind(503, "service_unavailable", "draining", "The server is shutting down."),
        Kind(503, "service_unavailable", "engine_dead", "A process of the engine died; the server is about to exit."),
    )
}
_FALLBACK = {
    400: "invalid_value",
    408: "request_timeout",
    413: "request_too_large",
    429: "rate_limited",
    503: "queue_full",
}


@dataclass(frozen=True, slots=True)
class Excess:
    """What did not fit a context, in tokens. `prompt` None: nobody counted them. `asked` 0: the prompt alone."""

    limit: int
    prompt: int | None
    asked: int = 0


class ApiError(Exception):
    """A refusal on its way to the client. `code` must be a row of `KINDS`."""

    def __init__(
        self,
        code: str,
        message: str,
        *,
        param: str | None = None,
        status: int | None = None,
        excess: Excess | None = None,
    ) -> None:
        super().__init__(message)
        self.kind = KINDS[code]
        self.status = status or self.kind.status
        self.message = message if len(message) <= MAX_MESSAGE_CHARS else message[: MAX_MESSAGE_CHARS - 1] + "…"
        self.param = param
        self.code = code
        self.excess = excess

    def body(self) -> bytes:
        """The JSON that goes to the client, alone or as an event of a stream."""
        error = {"message": self.message, "type": self.kind.type, "param": self.param, "code": self.code}
        return msgspec.json.encode({"error": error})

    def headers(self) -> list[tuple[bytes, bytes]]:
        """What the status obliges us to add."""
        if self.status in {429, 503}:
            return [(b"retry-after", b"%d" % RETRY_AFTER_S)]
        if self.status == 401:
            return [(b"www-authenticate", b"Bearer")]
        return []


def from_finish(finish: Finish, grammar_param: str) -> ApiError:
    """The error for a request that the engine refused or could not finish. `grammar_param`: the field that asked for
    its grammar."""
    code, status = finish.code, finish.status
    known = code if code is not None and code in KINDS else _FALLBACK.get(status, "internal_error")
    param = grammar_param if known == "grammar_too_complex" else None
    return ApiError(known, finish.message or KINDS[known].about, param=param, status=status if status >= 400 else None)


_NAMED = re.compile(r"`([a-z_]+(?:\.[a-z_]+)*)`")


@contextlib.contextmanager
def in_words_of(names: Mapping[str, str]) -> Iterator[None]:
    """Lets errors name fields as the client did, where a body was translated to that of another route.

    `names`: paths of the other route to the client's. What lies inside a path follows the longest that is known.
    """
    try:
        yield
    except ApiError as error:
        error.message = _NAMED.sub(lambda named: f"`{_renamed(named[1], names)}`", error.message)
        error.param = None if error.param is None else _renamed(error.param, names)
        raise


def _renamed(path: str, names: Mapping[str, str]) -> str:
    known, inside = path, ""
    while known not in names and "." in known:
        known, _, member = known.rpartition(".")
        inside = f".{member}{inside}"
    return names.get(known, known) + inside


def invalid(param: str, message: str) -> ApiError:
    """A value that is refused; `message` says what would be right."""
    return ApiError("invalid_value", f"`{param}` {message}", param=param)


def shown(value: object, *, limit: int = 60) -> str:
    """A client's value for an error message: printable ASCII and short, whatever its size."""
    if isinstance(value, list):
        return f"a list of {len(value)}"
    if isinstance(value, dict):
        return f"an object of {len(value)}"
    text = ascii(value[:limit] if isinstance(value, str) else value)
    return text if len(text) <= limit else text[: limit - 3] + "..."
