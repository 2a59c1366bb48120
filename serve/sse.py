"""Server-sent events, as the streams of OpenAI's chats and completions spell them."""

from corymb.serve.errors import ApiError

MEDIA_TYPE = b"text/event-stream; charset=utf-8"
DONE = b"data: [DONE]\n\n"


def event(payload: bytes) -> bytes:
    """One event. `payload` is JSON on one line."""
    return b"data: %b\n\n" % payload


def named(name: str, payload: bytes) -> bytes:
    """One event with its name."""
    return b"event: %b\ndata: %b\n\n" % (name.encode(), payload)


def failure(error: ApiError) -> bytes:
    """The end of a stream that broke."""
    return event(error.body()) + DONE
