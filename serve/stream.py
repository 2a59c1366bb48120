"""One request's answers, as the HTTP edge reads them."""

import asyncio
import time
from collections.abc import Callable
from types import TracebackType

from corymb.scheduler.messages import Generate, Text


class DuplicateRid(ValueError):
    """Another open request has this rid."""


class EngineUnavailable(Exception):
    """The engine takes no requests now; the sentence says why and is meant for the client."""


class EngineDied(EngineUnavailable):
    """The engine ended while this request was open."""


class Stream:
    """The answers to one Generate. Closing it while it is unfinished aborts the request: use it in a `with`."""

    __slots__ = (
        "_failure",
        "_forget",
        "_pending",
        "_waiter",
        "counts_prompt",
        "finished",
        "last_s",
        "num_output_tokens",
        "rid",
        "started_s",
        "wire_rid",
    )

    def __init__(
        self, request: Generate, wire_rid: str, *, counts_prompt: bool, forget: "Callable[[Stream], None]"
    ) -> None:
        self.rid = request.rid
        self.wire_rid = wire_rid
        self.counts_prompt = counts_prompt
        self.started_s = request.arrived_s or time.monotonic()
        self.last_s = 0.0  # when the latest tokens came; 0 before the first text
        self.num_output_tokens = 0
        self.finished = False
        self._forget = forget
        self._pending: list[Text] = []
        self._waiter: asyncio.Future[None] | None = None
        self._failure: EngineDied | None = None

    async def next(self) -> list[Text]:
        """Waits for at least one text and returns all that are there. Raises EngineDied when no more will come."""
        while not self._pending:
            if self._failure is not None:
                raise self._failure
            assert not self.finished, f"{self.rid}: next() after the finish"
            self._waiter = asyncio.get_running_loop().create_future()
            try:
                await self._waiter
            finally:
                self._waiter = None
        texts, self._pending = self._pending, []
        return texts

    def close(self) -> None:
        """Ends the stream; aborts the request if it has not finished. May be called again."""
        self._forget(self)

    def put(self, text: Text) -> None:
        """Adds what arrived."""
        self._pending.append(text)
        self._wake()

    def fail(self, message: str) -> None:
        """Ends the stream with an error after what is already pending."""
        self._failure = EngineDied(message)
        self._wake()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def __enter__(self) -> "Stream":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()
