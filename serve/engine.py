"""The main process's side of the scheduler: requests go in, streams of text come out."""

import asyncio
import itertools
import logging
import time
from collections.abc import Iterator
from typing import Literal

import msgspec

from corymb.scheduler.messages import (
    Abort,
    Action,
    Control,
    Forget,
    Generate,
    Grammar,
    Heartbeat,
    Learn,
    Message,
    Reply,
    Stats,
    Text,
    Texts,
)
from corymb.serve.metrics import Metrics
from corymb.serve.served_model import Info, ServedModel
from corymb.serve.stream import DuplicateRid, EngineDied, EngineUnavailable, Stream
from corymb.serve.transport import Outbox

__all__ = ["DuplicateRid", "Engine", "EngineDied", "EngineUnavailable", "ServedModel", "Stream"]

logger = logging.getLogger(__name__)

State = Literal["starting", "ready", "draining", "failed"]

_REFUSALS: dict[State, str] = {
    "starting": "The server is still starting.",
    "draining": "The server is shutting down and takes no new requests.",
}


class Engine:
    """Owns the table of open requests.

    On the wire every request gets a rid of its own (`RID#7`), so a client may reuse a rid as soon as its request has
    ended here, while the scheduler still winds the old one down.
    """

    def __init__(
        self,
        scheduler: Outbox,
        metrics: Metrics,
        info: ServedModel,
        *,
        heartbeat_timeout_s: float,
        log_requests: bool = False,
    ) -> None:
        self.info = info
        self.state: State = "starting"
        self.stats: Stats | None = None
        self.is_paused = False  # the scheduler plans nothing until it is told to go on
        self.failure = ""  # in the state `failed`: why, in one sentence
        self._scheduler = scheduler
        self._metrics = metrics
        self._heartbeat_timeout_s = heartbeat_timeout_s
        self._log_requests = log_requests
        self._streams: dict[str, Stream] = {}  # by wire rid
        self._rids: set[str] = set()
        self._replies: dict[str, asyncio.Future[Reply]] = {}
        self._beats: dict[str, tuple[float, Heartbeat]] = {}
        self._serial = itertools.count(1)

    # Requests.

    def submit(self, request: Generate, *, counts_prompt: bool = True) -> Stream:
        """Sends a request. `counts_prompt` is False for the further samples of one prompt: metrics count it once.

        Raises EngineUnavailable, DuplicateRid.
        """
        if self.state != "ready":
            raise EngineUnavailable(_REFUSALS.get(self.state, self.failure))
        if request.rid in self._rids:
            raise DuplicateRid(f"A request with rid {request.rid!r} is still running; choose another rid.")
        stream = Stream(request, f"{request.rid}#{next(self._serial)}", counts_prompt=counts_prompt, forget=self.forget)
        self._scheduler.send(msgspec.structs.replace(request, rid=stream.wire_rid, arrived_s=stream.started_s))
        self._streams[stream.wire_rid] = stream
        self._rids.add(stream.rid)
        return stream

    @property
    def num_open(self) -> int:
        """Requests without their last text."""
        return len(self._streams)

    def abort(self, rid: str | None) -> int:
        """Asks the scheduler to end one client's request (all its samples), or every one; returns how many."""
        streams = [s for s in self._streams.values() if rid is None or s.rid == rid or s.rid.startswith(f"{rid}/")]
        for stream in streams:
            self._scheduler.send(Abort(stream.wire_rid))
        return len(streams)

    def forget(self, stream: Stream) -> None:
        """Drops a stream from the table, and aborts its request if that has not finished."""
        if self._streams.pop(stream.wire_rid, None) is None:
            return
        self._rids.discard(stream.rid)
        self._metrics.finished("abort", time.monotonic() - stream.started_s)
        if self.state != "failed":
            self._scheduler.send(Abort(stream.wire_rid))

    async def order(self, action: Action, timeout_s: float, *, num_steps: int = 0, max_nodes: int = 0) -> Reply:
        """Has the scheduler do something; returns its answer. Raises EngineUnavailable, TimeoutError."""
        order = Control(id=str(next(self._serial)), action=action, num_steps=num_steps, max_nodes=max_nodes)
        async with asyncio.timeout(timeout_s):
            reply = await self._ask(order)
        if action in ("pause", "retract", "continue"):
            self.is_paused = action != "continue"
        return reply

    async def learn(self, grammar: Grammar, compiled: bytes) -> Reply:
        """Has the scheduler take in a compiled grammar; returns its answer. Raises EngineUnavailable, EngineDied."""
        return await self._ask(Learn(str(next(self._serial)), grammar, compiled))

    def forget_grammar(self, grammar: Grammar) -> None:
        """No further request will name it."""
        if self.state != "failed":
            self._scheduler.send(Forget(grammar))

    async def _ask(self, order: Control | Learn) -> Reply:
        if self.state not in ("ready", "draining"):
            raise EngineUnavailable(_REFUSALS.get(self.state, self.failure))
        future: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()
        self._replies[order.id] = future
        try:
            self._scheduler.send(order)
            return await future
        finally:
            del self._replies[order.id]

    # What the other processes say.

    def receive(self, message: Message) -> None:
        """Takes one message from a child."""
        if isinstance(message, Texts):
            self._receive_texts(message.texts)
        elif isinstance(message, Heartbeat):
            self._beats[message.process] = (time.monotonic(), message)
        elif isinstance(message, Stats):
            self.stats = message
            self._metrics.scheduler_stats(message)
        elif isinstance(message, Reply):
            self._receive_reply(message)

    def _receive_texts(self, texts: list[Text]) -> None:
        now_s = time.monotonic()
        for text in texts:
            stream = self._streams.get(text.rid)
            if stream is not None:  # else it was closed: its last texts are still on their way
                self._count(stream, text, now_s)
                if text.finish is not None:
                    self._finish(stream, text, now_s)
                stream.put(text)

    def _count(self, stream: Stream, text: Text, now_s: float) -> None:
        if not stream.last_s:
            stream.last_s = now_s
            if stream.counts_prompt:
                self._metrics.prompt(text.num_prompt_tokens, text.num_cached_tokens)
        new = text.num_output_tokens - stream.num_output_tokens
        if new <= 0:
            return
        if stream.num_output_tokens:
            self._metrics.tokens(new, now_s - stream.last_s)
        else:
            self._metrics.first_tokens(new, now_s - stream.started_s, text.queue_s)
        stream.num_output_tokens = text.num_output_tokens
        stream.last_s = now_s

    def _finish(self, stream: Stream, text: Text, now_s: float) -> None:
        assert text.finish is not None
        stream.finished = True
        del self._streams[stream.wire_rid]
        self._rids.discard(stream.rid)
        self._metrics.finished(text.finish.reason, now_s - stream.started_s)
        if self._log_requests:
            _log(stream, text, now_s)
        if isinstance(text.finish.matched, str):
            # The detokenizer saw a stop string; the scheduler does not know of it yet.
            self._scheduler.send(Abort(stream.wire_rid, stopped=True))

    def _receive_reply(self, reply: Reply) -> None:
        future = self._replies.get(reply.id)
        if future is not None and not future.done():
            future.set_result(reply)

    # Life.

    def ready(self, scheduler: Info) -> None:
        """The scheduler and the detokenizer are up."""
        tokens, page_size = scheduler.get("max_total_num_tokens"), scheduler.get("page_size")
        self.info = msgspec.structs.replace(
            self.info,
            scheduler=scheduler,
            max_total_num_tokens=tokens if isinstance(tokens, int) else 0,
            page_size=page_size if isinstance(page_size, int) else 1,
        )
        self.state = "ready"

    def drain(self) -> None:
        """Takes no new requests; open ones go on."""
        if self.state != "failed":
            self.state = "draining"

    def end_streams(self, message: str) -> None:
        """Ends every open request with an error, for its client."""
        for stream in list(self._streams.values()):
            self.forget(stream)
            stream.fail(message)
        for future in self._replies.values():
            if not future.done():
                future.set_exception(EngineDied(message))

    def fail(self, message: str) -> None:
        """A child died or hangs: ends everything."""
        self.state, self.failure = "failed", message
        self.end_streams(message)

    @property
    def alive(self) -> bool:
        """False when a child has died or its last heartbeat is older than `--heartbeat-timeout`."""
        return self.state != "failed" and not self.silent_s(self._heartbeat_timeout_s)

    def silent_s(self, limit_s: float) -> dict[str, float]:
        """The processes that have not been heard of for longer than `limit_s`, with their silence."""
        now_s = time.monotonic()
        ages = {name: now_s - heard_s for name, (heard_s, _) in self._beats.items()}
        return {name: age for name, age in ages.items() if age > limit_s}

    def busy_s(self) -> Iterator[tuple[str, float]]:
        """How long each process has been in one turn of its loop."""
        for name, (heard_s, beat) in self._beats.items():
            yield name, beat.step_age_s and beat.step_age_s + time.monotonic() - heard_s


def _log(stream: Stream, text: Text, now_s: float) -> None:
    """One line a request, without anything of its content."""
    assert text.finish is not None
    logger.info(
        "%s: %s after %.3f s, prompt %d (cached %d), output %d",
        stream.rid,
        text.finish.reason,
        now_s - stream.started_s,
        text.num_prompt_tokens,
        text.num_cached_tokens,
        text.num_output_tokens,
    )
