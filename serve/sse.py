"""Server-sent events: how every stream of the server is spelled."""

DONE = b"data: [DONE]\n\n"


def event(payload: bytes) -> bytes:
    """One event. `payload` is JSON on one line."""
    return b"data: %b\n\n" % payload
