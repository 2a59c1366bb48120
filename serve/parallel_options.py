"""How many ranks share the model and where they run, and which wishes exclude each other."""

from collections.abc import Iterator

import msgspec

_MAX_PORT = 65535
NODE_PORT = 1  # above the address's port: where the other nodes' main processes report


class ParallelOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Wishes as they were given."""

    tp_size: int = 1
    base_gpu_id: int = 0
    gpu_id_step: int = 1
    nnodes: int = 1
    node_rank: int = 0
    dist_init_addr: str | None = None  # HOST:PORT on node 0
    node_timeout_s: float = 1.5
    check_plans: bool = False

    @property
    def local_size(self) -> int:
        """Ranks on this node."""
        return self.tp_size // self.nnodes

    @property
    def local_ranks(self) -> range:
        """The ranks of this node."""
        return range(self.node_rank * self.local_size, (self.node_rank + 1) * self.local_size)

    @property
    def has_further_nodes(self) -> bool:
        """Whether others join this node."""
        return self.node_rank == 0 and self.nnodes > 1

    def gpu_of(self, rank: int) -> int:
        """The index of a rank's GPU on its node."""
        return self.base_gpu_id + rank % self.local_size * self.gpu_id_step

    @property
    def place(self) -> tuple[str, int]:
        """Where nodes meet."""
        host, _, port = (self.dist_init_addr or "").rpartition(":")
        return host, int(port)


def conflicts(options: ParallelOptions) -> Iterator[str]:
    """A sentence for each wish that cannot be met together with the others."""
    if options.tp_size % options.nnodes:
        yield f"--tp-size {options.tp_size} cannot be spread evenly over --nnodes {options.nnodes}."
    if options.node_rank >= options.nnodes:
        yield f"--node-rank {options.node_rank} is not below --nnodes {options.nnodes}; nodes count from 0."
    if options.nnodes > 1 and options.dist_init_addr is None:
        yield "--nnodes needs --dist-init-addr HOST:PORT, an address of node 0 that all nodes reach."
    if options.dist_init_addr is not None:
        host, _, port = options.dist_init_addr.rpartition(":")
        if not host or not port.isdecimal() or not 0 < int(port) <= _MAX_PORT - NODE_PORT:
            yield f"--dist-init-addr {options.dist_init_addr} is not HOST:PORT with a port from 1 to 65534."
        elif options.nnodes == 1:
            yield "--dist-init-addr is for several nodes: give --nnodes, or leave it out."
