"""The main process once its model is known: sockets, engine, HTTP application and supervisor, put together."""

import asyncio
import os
import sys
from collections.abc import Callable, Coroutine
from pathlib import Path
from socket import AF_INET6, socket

import uvloop
from starlette.types import ASGIApp

from corymb.scheduler.messages import ToMain
from corymb.serve.children import Children
from corymb.serve.config import ServeConfig
from corymb.serve.engine import Engine, ServedModel
from corymb.serve.log import DecodeLog
from corymb.serve.metrics import Metrics
from corymb.serve.nodes import Family, Nodes
from corymb.serve.supervisor import Supervisor
from corymb.serve.timeline import Timeline
from corymb.serve.transport import MAIN, SCHEDULER, Inbox, Outbox, address

MakeApp = Callable[[Engine, Metrics], ASGIApp]


def run(
    config: ServeConfig,
    model: ServedModel,
    make_app: MakeApp,
    *,
    listener: socket,
    sockets: Path,
    children: Children,
    timeline: Timeline,
    nodes: Nodes | None = None,
) -> int:
    """Serves until the end; returns the exit status. The children have been told their options."""
    metrics = Metrics(model.names[0])
    metrics.processes({MAIN: os.getpid(), **children.pids})
    with (
        Outbox(address(sockets, SCHEDULER), bounded=False) as outbox,
        Inbox[ToMain](address(sockets, MAIN), ToMain) as inbox,
    ):
        engine = Engine(
            outbox,
            metrics,
            model,
            heartbeat_timeout_s=config.runtime.heartbeat_timeout_s,
            log_requests=config.http.log_requests,
        )
        supervisor = Supervisor(
            config.runtime,
            family=Family(children, nodes),
            engine=engine,
            inbox=inbox,
            metrics=metrics,
            timeline=timeline,
            url=_url(listener),
            decode_log=DecodeLog(interval) if (interval := config.http.decode_log_interval) else None,
        )
        status = _run(supervisor.run(make_app(engine, metrics), listener))
        if nodes is not None:
            nodes.status = status
        return status


def _run(main: Coroutine[None, None, int]) -> int:
    """Like asyncio.run, except that it does not wait for threads: they may work for clients that are gone."""
    loop = uvloop.new_event_loop()
    asyncio.set_event_loop(loop)
    status = loop.run_until_complete(main)
    tasks = asyncio.all_tasks(loop)
    for task in tasks:
        task.cancel()
    if tasks:
        loop.run_until_complete(asyncio.wait(tasks, timeout=0.5))
    sys.stderr.flush()
    return status


def _url(listener: socket) -> str:
    host, port = listener.getsockname()[:2]
    shown = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)  # noqa: S104 - compared, not bound
    return f"http://[{shown}]:{port}" if listener.family == AF_INET6 else f"http://{shown}:{port}"
