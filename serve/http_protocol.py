"""HTTP/1.1 with limits that uvicorn does not have: on the size of a head, and on how long a peer may take."""

import asyncio
import logging
from typing import Any

from uvicorn.config import Config
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol
from uvicorn.server import ServerState

from corymb.serve.errors import ApiError

logger = logging.getLogger(__name__)

MAX_HEAD_BYTES = 64 << 10
MAX_HEADERS = 256
HEAD_TIMEOUT_S = 30.0
WRITE_TIMEOUT_S = 120.0  # a client that reads nothing for so long is taken as gone


class _HeadTooLarge(Exception):
    """Stops the parser."""


class LimitedHttpProtocol(HttpToolsProtocol):
    """One connection. Refuses in the server's own error shape."""

    def __init__(
        self,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        super().__init__(config, server_state, app_state, _loop)
        self._in_head = False
        self._head_bytes = 0
        self._too_large = False
        self._head_timer: asyncio.TimerHandle | None = None
        self._write_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """A client connected and owes a request."""
        super().connection_made(transport)
        self._start_head_timer()

    def connection_lost(self, exc: Exception | None) -> None:
        """The connection is over."""
        for timer in (self._head_timer, self._write_timer):
            if timer is not None:
                timer.cancel()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Feeds the parser, and stops a head that does not end."""
        was_in_head = self._in_head
        super().data_received(data)
        # The parser gathers a header's value without telling, so arriving bytes are what can be counted.
        if was_in_head and self._in_head and not self.transport.is_closing():
            self._head_bytes += len(data)
            if self._head_bytes > MAX_HEAD_BYTES:
                self._too_large = True
                self.send_400_response("")

    def on_message_begin(self) -> None:
        """The first byte of a request."""
        super().on_message_begin()
        self._in_head, self._head_bytes = True, 0
        self._start_head_timer()

    def on_header(self, name: bytes, value: bytes) -> None:
        """One header, or a trailer after a chunked body."""
        if len(self.headers) >= MAX_HEADERS:
            self._too_large = True
            raise _HeadTooLarge
        super().on_header(name, value)

    def on_headers_complete(self) -> None:
        """The head has ended."""
        if len(self.url) + sum(len(name) + len(value) for name, value in self.headers) > MAX_HEAD_BYTES:
            self._too_large = True
            raise _HeadTooLarge
        self._in_head = False
        if self._head_timer is not None:
            self._head_timer.cancel()
        super().on_headers_complete()

    def pause_writing(self) -> None:
        """The client reads more slowly than we write."""
        super().pause_writing()
        self._write_timer = self.loop.call_later(WRITE_TIMEOUT_S, self.transport.abort)

    def resume_writing(self) -> None:
        """The client has caught up."""
        super().resume_writing()
        if self._write_timer is not None:
            self._write_timer.cancel()

    def send_400_response(self, msg: str) -> None:
        """Answers what cannot become a request, and closes."""
        if self._too_large:
            limit = f"{MAX_HEAD_BYTES} bytes and {MAX_HEADERS} headers"
            error = ApiError("headers_too_large", f"The request line and headers are larger than {limit}.")
        else:
            error = ApiError("invalid_http", msg)
        body = error.body()
        head = b"content-type: application/json\r\nconnection: close\r\ncontent-length: %d\r\n\r\n" % len(body)
        self.transport.write(STATUS_LINE[error.status] + head + body)
        self.transport.close()

    def _start_head_timer(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
        self._head_timer = self.loop.call_later(HEAD_TIMEOUT_S, self._give_up)

    def _give_up(self) -> None:
        logger.debug("A client sent no whole request head within %g s", HEAD_TIMEOUT_S)
        self.transport.close()
