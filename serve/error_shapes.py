"""Errors as each dialect's clients expect them; statuses are the same everywhere."""

import msgspec

from corymb.serve.errors import ApiError, Excess

_ANTHROPIC_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
}


def spelled_error(path: str, error: ApiError) -> bytes:
    """The body of an error, in the shape of the API that `path` belongs to."""
    if path == "/v1/messages" or path.startswith("/v1/messages/"):
        return anthropic_error(error)
    return ollama_error(error) if path.startswith("/api/") else error.body()


def anthropic_error(error: ApiError) -> bytes:
    """`{"type": "error", "error": {"type", "message"}}`."""
    fallback = "invalid_request_error" if error.status < 500 else "api_error"
    kind = _ANTHROPIC_TYPES.get(error.status, fallback)
    return msgspec.json.encode(
        {"type": "error", "error": {"type": kind, "message": _excess(error.excess) + error.message}}
    )


def _excess(excess: Excess | None) -> str:
    """Agents that speak Anthropic's API shorten a conversation when they read these words."""
    if excess is None:
        return ""
    if excess.asked:
        sum_of_both = f"{excess.prompt} + {excess.asked} > {excess.limit}"
        return f"input length and `max_tokens` exceed context limit: {sum_of_both}. "
    counted = "" if excess.prompt is None else f": {excess.prompt} tokens > {excess.limit} maximum"
    return f"prompt is too long{counted}. "


def ollama_error(error: ApiError) -> bytes:
    """`{"error": "…"}`."""
    return msgspec.json.encode({"error": error.message})
