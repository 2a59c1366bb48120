"""The main process's life: starting, serving, draining, ending.

Crash-only: when a child dies or hangs, every open request ends with an error and the process exits with 1. A service
manager starts it anew; nothing is repaired in place.
"""

import asyncio
import contextlib
import logging
import signal
import time
from collections.abc import Iterator
from socket import socket

import uvicorn
from starlette.types import ASGIApp

from corymb.scheduler.messages import Failed, Heartbeat, Ready, Stage, Stats, Texts, ToMain
from corymb.serve.config import RuntimeOptions
from corymb.serve.engine import Engine
from corymb.serve.http_protocol import LimitedHttpProtocol
from corymb.serve.log import DecodeLog
from corymb.serve.metrics import Metrics
from corymb.serve.nodes import Family
from corymb.serve.served_model import Info
from corymb.serve.timeline import Timeline
from corymb.serve.transport import SCHEDULER, Inbox

logger = logging.getLogger(__name__)

_TICK_S = 0.1
_KEEP_ALIVE_S = 65  # longer than clients' pools keep idle connections: they, not we, should close them
_FLUSH_S = 3  # for answers that are on their way to slow clients when the server ends


class HttpServer(uvicorn.Server):
    """uvicorn without its signal handlers: signals are the supervisor's."""

    def __init__(self, app: ASGIApp) -> None:
        config = uvicorn.Config(
            app,
            http=LimitedHttpProtocol,
            ws="none",
            lifespan="off",
            timeout_keep_alive=_KEEP_ALIVE_S,
            log_config=None,
            access_log=False,
            server_header=False,
            timeout_graceful_shutdown=_FLUSH_S,
        )
        super().__init__(config)
        logging.getLogger("uvicorn").setLevel(logging.WARNING)  # the timeline says when the server is up

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Captures none."""
        yield


class Supervisor:
    """Watches children, signals and clocks, and decides when and how the server ends."""

    def __init__(
        self,
        runtime: RuntimeOptions,
        *,
        family: Family,
        engine: Engine,
        inbox: Inbox[ToMain],
        metrics: Metrics,
        timeline: Timeline,
        url: str,
        decode_log: DecodeLog | None = None,
    ) -> None:
        self._runtime = runtime
        self._family = family
        self._engine = engine
        self._inbox = inbox
        self._metrics = metrics
        self._timeline = timeline
        self._url = url
        self._decode_log = decode_log
        self._ready: dict[str, Info] = {}
        self._drain_until_s = float("inf")
        self._end = asyncio.Event()
        self._status = 0
        self._forced = False

    async def run(self, app: ASGIApp, listener: socket) -> int:
        """Serves until the end; returns the exit status."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, self._on_signal, number)
        loop.add_reader(self._inbox.fd, self._receive)
        server = HttpServer(app)
        serving = asyncio.create_task(server.serve(sockets=[listener]))
        self._receive()  # what came before the reader was there gives no event
        while not self._end.is_set():
            self._tick()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._end.wait(), _TICK_S)
        await self._close(server, serving)
        loop.remove_reader(self._inbox.fd)
        return self._status

    async def _close(self, server: HttpServer, serving: "asyncio.Task[None]") -> None:
        server.should_exit = True
        waiting = asyncio.create_task(self._until_forced())
        await asyncio.wait((serving, waiting), return_when=asyncio.FIRST_COMPLETED)
        for task in (serving, waiting):
            task.cancel()

    async def _until_forced(self) -> None:
        while not self._forced:
            await asyncio.sleep(_TICK_S)

    # What happens.

    def _receive(self) -> None:
        while messages := self._inbox.receive():
            for message in messages:
                self._take(message)

    def _take(self, message: ToMain) -> None:
        if isinstance(message, Texts | Heartbeat | Stats):
            self._engine.receive(message)
            if self._decode_log is not None and isinstance(message, Stats):
                self._decode_log.take(message)
        elif isinstance(message, Stage):
            self._timeline.stage(message)
            if message.seconds is not None:
                self._metrics.startup_stage(message.name, message.seconds)
        elif isinstance(message, Ready):
            self._ready[message.process] = message.info
            if not self._waited_for and self._engine.state == "starting":
                self._open()
        elif isinstance(message, Failed):
            self._fail(f"The {message.process} process failed.", message.message)
        else:
            self._engine.receive(message)

    @property
    def _waited_for(self) -> list[str]:
        """The processes of all nodes that are not ready yet."""
        return [name for name in self._family.names if name not in self._ready]

    def _open(self) -> None:
        self._engine.ready(self._ready[SCHEDULER])
        self._metrics.startup_stage("total", self._timeline.elapsed_s)
        self._timeline.ready(self._url, self._engine.info.names[0])

    def _on_signal(self, number: int) -> None:
        if self._engine.state == "starting":
            self._stop(128 + number)
        elif self._drain_until_s == float("inf"):
            logger.info("Ending: %d open requests have %g s.", self._engine.num_open, self._runtime.drain_timeout_s)
            self._drain_until_s = time.monotonic() + self._runtime.drain_timeout_s
            self._engine.drain()
        elif number == signal.SIGINT:
            self._forced = True
            self._stop(128 + number)

    def _stop(self, status: int) -> None:
        self._status = self._status or status
        self._end.set()

    def _fail(self, message: str, details: str = "") -> None:
        """`message` reaches clients; `details` may name files and stays in the log."""
        if self._engine.state != "failed":
            logger.error("%s %s", message, details or "The server ends.")
            self._engine.fail(message)
        self._stop(1)

    # What is looked at ten times a second.

    def _tick(self) -> None:
        self._hear()
        if (dead := self._family.children.dead()) is not None:
            self._receive()  # it may have said why
            self._fail(f"The {dead.name} process {dead.how_it_ended()}.")
        elif (lost := self._family.lost) is not None:
            self._hear()  # it may have said why
            self._fail("A node of the server is lost.", lost)
        elif self._engine.state == "starting":
            self._check_start()
        else:
            self._check_hung()
        if time.monotonic() >= self._drain_until_s or (self._engine.state == "draining" and not self._engine.num_open):
            self._engine.end_streams("The server is shutting down; the time for open requests is over.")
            self._stop(0)

    def _hear(self) -> None:
        """Takes what the other nodes have said."""
        for message in self._family.receive():
            self._take(message)

    def _check_start(self) -> None:
        limit_s = self._runtime.startup_timeout_s
        if self._timeline.elapsed_s > limit_s:
            self._fail(
                f"The start-up took over {limit_s:g} s (--startup-timeout): {self._timeline.late(self._waited_for)}."
            )

    def _check_hung(self) -> None:
        self._receive()  # this process itself may have been stopped for a while
        limit_s = self._runtime.watchdog_timeout_s
        for name, silent_s in self._engine.silent_s(limit_s).items():
            self._fail(f"The {name} process has not been heard of for {silent_s:.0f} s (--watchdog-timeout).")
        for name, busy_s in self._engine.busy_s():
            if busy_s > limit_s:
                self._fail(f"The {name} process has been busy with one step for {busy_s:.0f} s (--watchdog-timeout).")
