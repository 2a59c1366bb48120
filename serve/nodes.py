"""Node 0's side of a server on several nodes: who has joined, what they say, and whether they are still there."""

import logging
import socket
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import msgspec

from corymb.scheduler.messages import Failed, Heartbeat, Ready, Stage
from corymb.serve.children import Children
from corymb.serve.config import ConfigError, ServeConfig
from corymb.serve.node_link import Answer, Farewell, Hello, NodeLink, Setting
from corymb.serve.parallel_options import NODE_PORT
from corymb.serve.transport import scheduler_name

logger = logging.getLogger(__name__)

OfChild = Stage | Ready | Failed | Heartbeat
# What plans and steps depend on; of other sections only these settings, and not where a node has its ranks.
_SECTIONS = ("scheduler", "memory", "gpu", "parallel", "speculative")
_SETTINGS = {"model": ("dtype", "quantization", "load_format", "context_length"), "runtime": ("device",)}
_OWN = (
    "node_rank",
    "base_gpu_id",
    "gpu_id_step",
    # Paths: what lies there must be the same, wherever that is.
    "speculative_draft_model_path",
    "speculative_dspark_confidence_sts_path",
    "speculative_dspark_sps_table_path",
    "speculative_trace",
)


class Nodes:
    """Owns the port that other nodes join at, and the links to them."""

    def __init__(self, config: ServeConfig) -> None:
        """Listens. Raises ConfigError."""
        options = config.parallel
        self._options = options
        self._settings: Mapping[str, Setting] = {}
        self._settled = threading.Event()
        self._links: dict[int, NodeLink] = {}
        self.status = 1  # that the server ends with
        host, port = options.place
        try:
            self._listener = socket.create_server((host, port + NODE_PORT))
        except OSError as error:
            raise ConfigError(f"--dist-init-addr {options.dist_init_addr}: {error.strerror or error}.") from error
        threading.Thread(target=self._accept, name="nodes", daemon=True).start()

    def __enter__(self) -> "Nodes":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def names(self) -> list[str]:
        """The processes of the other nodes."""
        options = self._options
        return [scheduler_name(rank) for rank in range(options.tp_size) if rank not in options.local_ranks]

    def settle(self, config: ServeConfig) -> None:
        """What this node has decided; those that decided otherwise are not let in."""
        self._settings = shared_settings(config)
        self._settled.set()

    def receive(self) -> Iterator[OfChild]:
        """What the processes of the other nodes have said since the last call."""
        for link in list(self._links.values()):
            for message in link.receive():
                if isinstance(message, Stage | Ready | Failed | Heartbeat):
                    yield message

    @property
    def lost(self) -> str | None:
        """A sentence about a node that is gone."""
        return next((link.lost for link in list(self._links.values()) if link.lost), None)

    @property
    def missing(self) -> list[int]:
        """The nodes that have not joined yet."""
        return [rank for rank in range(1, self._options.nnodes) if rank not in self._links]

    def close(self) -> None:
        """Tells the others that this is the end, and how it came."""
        self._listener.close()
        for link in list(self._links.values()):
            link.send(Farewell(self.status))
            link.close()

    def _accept(self) -> None:
        while self.missing:
            try:
                sock, where = self._listener.accept()
            except OSError:
                return  # closed
            link = NodeLink(sock, f"A node at {where[0]}", self._options.node_timeout_s)
            threading.Thread(target=self._admit, args=(link,), name="join", daemon=True).start()

    def _admit(self, link: NodeLink) -> None:
        self._settled.wait()
        hello = link.wait(self._options.node_timeout_s)
        if not isinstance(hello, Hello):
            link.close()
            return
        refusal = self._refusal(hello)
        link.send(Answer(refusal))
        if refusal:
            # It closes the connection: if this side did, the answer might be lost on the way.
            logger.warning("A node was not let in: %s", refusal)
            return
        link.call(f"Node {hello.node_rank}")
        self._links[hello.node_rank] = link

    def _refusal(self, hello: Hello) -> str:
        if hello.node_rank not in self.missing:
            return f"--node-rank {hello.node_rank} is not wanted: {_join(self.missing)} of --nnodes are missing."
        for name, value in self._settings.items():
            if hello.settings.get(name) != value:
                other = hello.settings.get(name)
                return f"Node {hello.node_rank} was started with {name} {other}, and node 0 with {value}."
        return ""


@dataclass(frozen=True, slots=True)
class Family:
    """All processes of a server but its main one, on this node and on others."""

    children: Children
    nodes: Nodes | None = None

    @property
    def names(self) -> list[str]:
        """Of all of them."""
        return self.children.names + (self.nodes.names if self.nodes else [])

    def receive(self) -> list[OfChild]:
        """What those of other nodes have said since the last call."""
        return list(self.nodes.receive()) if self.nodes else []

    @property
    def lost(self) -> str | None:
        """A sentence about a node that is gone."""
        return self.nodes.lost if self.nodes else None


def shared_settings(config: ServeConfig) -> dict[str, Setting]:
    """The settings on which a plan may depend, by name."""
    sections: dict[str, dict[str, object]] = msgspec.to_builtins(config)
    shared = {name: value for section in _SECTIONS for name, value in sections[section].items() if name not in _OWN}
    shared |= {name: sections[section][name] for section, names in _SETTINGS.items() for name in names}
    return {
        name: value if value is None or isinstance(value, int | float | str) else str(value)
        for name, value in shared.items()
    }


def _join(ranks: list[int]) -> str:
    return " and ".join(map(str, ranks)) or "none"
