"""The main process of a node that serves no HTTP: it joins node 0, and its ranks live as long as the server does."""

import logging
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from corymb.scheduler.messages import Failed, Heartbeat, Ready, Stage, ToMain
from corymb.serve.children import ChildOptions, Children
from corymb.serve.config import ConfigError, ServeConfig
from corymb.serve.node_link import Answer, Hello, NodeLink
from corymb.serve.nodes import shared_settings
from corymb.serve.parallel_options import NODE_PORT
from corymb.serve.prepare import prepare
from corymb.serve.timeline import Timeline
from corymb.serve.transport import MAIN, Inbox, address

logger = logging.getLogger(__name__)

_TICK_S = 0.05
_RETRY_S = 0.2


def serve_further(config: ServeConfig, *, sockets: Path, children: Children, timeline: Timeline) -> int:
    """Runs this node's ranks until the end; returns the exit status. Raises ConfigError, ModelError."""
    prepared = prepare(config)
    with Inbox[ToMain](address(sockets, MAIN), ToMain) as inbox, _joined(prepared.config) as link:
        timeline.line("joined", timeline.elapsed_s, f"node {config.parallel.node_rank} of {config.parallel.nnodes}")
        children.tell(
            ChildOptions(
                sockets=str(sockets),
                model_folder=str(prepared.source.folder),
                tokenizer_folder=str(prepared.tokenizer_folder),
                config=prepared.config.without_secrets(),
            )
        )
        while (status := _turn(inbox, link, children)) is None:
            time.sleep(_TICK_S)
        return status


def _turn(inbox: Inbox[ToMain], link: NodeLink, children: Children) -> int | None:
    """Passes on what the ranks say; the exit status when this is the end."""
    for message in inbox.receive():
        if isinstance(message, Stage | Ready | Failed | Heartbeat):
            link.send(message)
        if isinstance(message, Failed):
            logger.error("The %s process failed. %s", message.process, message.message)
            return 1
    if (dead := children.dead()) is not None:
        how = f"It {dead.how_it_ended()}."
        logger.error("The %s process ended. %s", dead.name, how)
        link.send(Failed(dead.name, how))
        return 1
    if link.farewell is not None:
        logger.info("Node 0 has ended the server.")
        return link.farewell.status
    if link.lost:
        logger.error("%s", link.lost)
        return 1
    return None


@contextmanager
def _joined(config: ServeConfig) -> Iterator[NodeLink]:
    """A link to node 0, once that one is there and has let this node in. Raises ConfigError."""
    options = config.parallel
    link = NodeLink(_connect(config), "Node 0", options.node_timeout_s)
    try:
        link.send(Hello(options.node_rank, shared_settings(config)))
        answer = link.wait(config.runtime.startup_timeout_s)
        if not isinstance(answer, Answer):
            raise ConfigError(f"--dist-init-addr {options.dist_init_addr}: {link.lost or 'nobody answers there.'}")
        if answer.refusal:
            raise ConfigError(answer.refusal)
        yield link
    finally:
        link.close()


def _connect(config: ServeConfig) -> socket.socket:
    """Waits for node 0: which node is started first does not matter."""
    host, port = config.parallel.place
    until_s = time.monotonic() + config.runtime.startup_timeout_s
    while True:
        try:
            return socket.create_connection((host, port + NODE_PORT), timeout=_RETRY_S * 10)
        except OSError as error:
            if time.monotonic() > until_s:
                raise ConfigError(
                    f"--dist-init-addr {config.parallel.dist_init_addr}: node 0 cannot be reached: {error}."
                ) from error
            time.sleep(_RETRY_S)
