"""One HTTP request being answered: bounded reading of its body, and the only writer of its response."""

import asyncio
import urllib.parse
from collections.abc import Callable, Sequence

from starlette.types import Receive, Scope, Send

from corymb.serve.error_shapes import spelled_error
from corymb.serve.errors import ApiError, invalid

Headers = Sequence[tuple[bytes, bytes]]
_MAX_NAMED, _MAX_NAME_CHARS = 20, 64  # ignored fields that the response header names
JSON = (b"content-type", b"application/json")


class ClientGone(Exception):
    """The client closed the connection while its body was being read."""


class Call:
    """Owns one exchange: the response starts at most once, and nothing is written after it ended."""

    def __init__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.scope = scope
        self.receive = receive
        self.started = False
        self.extra_headers: list[tuple[bytes, bytes]] = []  # for whatever response follows
        self.ignored: dict[str, None] = {}  # fields that had no effect, in order
        self._send = send
        self._unread = _queries(scope)  # what the query gives beside what was asked for
        self._spell_failure: Callable[[ApiError], bytes] | None = None  # of a stream that has begun

    @property
    def path(self) -> str:
        """The decoded path, as the router sees it."""
        path: str = self.scope["path"]
        return path

    def query(self, name: str) -> str | None:
        """The value that the query gives; None where it gives none. An empty value is one.

        The fields of a query that no handler asks for are named as ignored.
        """
        values = self._unread.pop(name, [])
        if len(values) > 1:
            raise invalid(name, f"is given {len(values)} times in the query: once is enough.")
        return values[0] if values else None

    def query_list(self, name: str) -> list[str]:
        """Every value that the query gives, also in the form NAME[] of some clients."""
        return [*self._unread.pop(name, []), *self._unread.pop(f"{name}[]", [])]

    def header(self, name: bytes) -> bytes:
        """The first header of this lower-case name, or nothing."""
        return next((value for key, value in self.scope["headers"] if key == name), b"")

    async def read_body(self, max_bytes: int, timeout_s: float) -> bytes:
        """Reads at most `max_bytes`, whether or not the client announced more."""
        announced = self.header(b"content-length")
        if announced.isdigit() and int(announced) > max_bytes:
            raise _too_large(max_bytes)
        try:
            async with asyncio.timeout(timeout_s):
                return await self._read_parts(max_bytes)
        except TimeoutError as error:
            raise ApiError("request_timeout", f"The body did not arrive within {timeout_s:g} s.") from error

    async def _read_parts(self, max_bytes: int) -> bytes:
        body = bytearray()
        while True:
            message = await self.receive()
            if message["type"] == "http.disconnect":
                raise ClientGone
            body += message.get("body", b"")
            if len(body) > max_bytes:
                raise _too_large(max_bytes)
            if not message.get("more_body", False):
                return bytes(body)

    async def wait_gone(self) -> None:
        """Returns when the client has closed the connection."""
        while (await self.receive())["type"] != "http.disconnect":
            pass

    async def answer(self, status: int, body: bytes, *, headers: Headers = (JSON,)) -> None:
        """Sends a whole response."""
        await self._start(status, [*headers, (b"content-length", b"%d" % len(body))])
        content = b"" if self.scope["method"] == "HEAD" else body
        await self._send({"type": "http.response.body", "body": content, "more_body": False})

    async def refuse(self, error: ApiError) -> None:
        """Sends an error: as the whole response, or as the end of the stream that has begun."""
        if self._spell_failure is not None:
            await self.end_stream(self._spell_failure(error))
        else:
            await self.answer(error.status, spelled_error(self.path, error), headers=[JSON, *error.headers()])

    async def start_stream(self, media_type: bytes, *, fail: Callable[[ApiError], bytes]) -> None:
        """Sends the head of a stream. `fail` spells what ends it early."""
        await self._start(200, [(b"content-type", media_type), (b"cache-control", b"no-cache")])
        self._spell_failure = fail

    async def write(self, events: bytes) -> None:
        """Sends a part of the stream; waits while the client reads too slowly."""
        await self._send({"type": "http.response.body", "body": events, "more_body": True})

    async def end_stream(self, events: bytes) -> None:
        """Sends the last part of the stream."""
        await self._send({"type": "http.response.body", "body": events, "more_body": False})

    async def _start(self, status: int, headers: list[tuple[bytes, bytes]]) -> None:
        assert not self.started
        self.started = True
        all_headers = [*headers, *self.extra_headers, *self._ignored_header()]
        await self._send({"type": "http.response.start", "status": status, "headers": all_headers})

    def _ignored_header(self) -> list[tuple[bytes, bytes]]:
        ignored = self.ignored | dict.fromkeys(self._unread)
        if not ignored:
            return []
        # Quoted: a field's name is the client's and could hold anything.
        names = [urllib.parse.quote(name[:_MAX_NAME_CHARS], safe="") for name in list(ignored)[:_MAX_NAMED]]
        return [(b"x-ignored-fields", ", ".join(names).encode())]


def _queries(scope: Scope) -> dict[str, list[str]]:
    given: bytes = scope.get("query_string", b"")
    return urllib.parse.parse_qs(given.decode("latin-1"), keep_blank_values=True) if given else {}


def _too_large(max_bytes: int) -> ApiError:
    return ApiError("request_too_large", f"The body is larger than the {max_bytes} bytes this server reads.")
