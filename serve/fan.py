"""Several generations merged into one stream of (choice, text)."""

import asyncio
from collections.abc import Sequence
from types import TracebackType

from corymb.scheduler.messages import Text
from corymb.serve.asks import Ask, generates
from corymb.serve.engine import DuplicateRid, Engine, EngineDied, EngineUnavailable, Stream
from corymb.serve.errors import ApiError, from_finish

Pieces = list[tuple[int, Text]]
_SUBMIT_AT_ONCE = 64  # then others get a turn of the event loop


class Fan:
    """Owns the open streams of one HTTP request; leaving the `with` block aborts what has not finished."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._streams: list[Stream] = []
        self._grammar_params: list[str] = []  # by choice: which field asks for what it follows
        self._num_open = 0
        self._failure: ApiError | None = None
        self._readers: list[asyncio.Task[None]] = []
        self._pieces: Pieces = []
        self._arrived = asyncio.Event()

    async def open(self, asks: Sequence[Ask]) -> None:
        """Submits everything, or raises the reason why not."""
        self._grammar_params = [ask.grammar_param for ask in asks for _ in range(ask.n)]
        for request, is_first in generates(asks):
            try:
                self._streams.append(self._engine.submit(request, counts_prompt=is_first))
            except DuplicateRid as error:
                raise ApiError("duplicate_rid", str(error), param="rid") from error
            except EngineUnavailable as error:
                raise unavailable(self._engine, str(error)) from error
            if len(self._streams) % _SUBMIT_AT_ONCE == 0:
                await asyncio.sleep(0)
        self._num_open = len(self._streams)
        if self._num_open > 1:
            self._readers = [asyncio.create_task(self._read(i, stream)) for i, stream in enumerate(self._streams)]

    async def next(self) -> Pieces:
        """Waits for at least one piece and returns all that are there; nothing once every choice has finished.

        Raises the error of a choice, after what came before it.
        """
        if self._failure is not None:
            raise self._failure
        if self._num_open == 0:
            return []
        pieces = await (self._next_of_many() if self._readers else self._next_of_one())
        for position, (index, text) in enumerate(pieces):
            if text.finish is None:
                continue
            self._num_open -= 1
            if text.finish.status >= 400 or text.finish.reason == "error":
                self._failure = from_finish(text.finish, self._grammar_params[index])
                pieces = pieces[:position]
                break
        if self._failure is not None and not pieces:
            raise self._failure
        return pieces

    async def _next_of_one(self) -> Pieces:
        try:
            return [(0, text) for text in await self._streams[0].next()]
        except EngineDied as error:
            raise unavailable(self._engine, str(error)) from error

    async def _next_of_many(self) -> Pieces:
        while not self._pieces:
            if self._failure is not None:
                raise self._failure
            self._arrived.clear()
            await self._arrived.wait()
        pieces, self._pieces = self._pieces, []
        return pieces

    async def _read(self, index: int, stream: Stream) -> None:
        finished = False
        while not finished:
            try:
                texts = await stream.next()
            except EngineDied as error:
                self._failure = unavailable(self._engine, str(error))
                break
            self._pieces += [(index, text) for text in texts]
            self._arrived.set()
            finished = texts[-1].finish is not None
        self._arrived.set()

    def __enter__(self) -> "Fan":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        for reader in self._readers:
            reader.cancel()
        for stream in self._streams:
            stream.close()


def unavailable(engine: Engine, message: str) -> ApiError:
    """The refusal that fits the state of the engine."""
    codes = {"starting": "not_ready", "draining": "draining"}
    return ApiError(codes.get(engine.state, "engine_dead"), message)
