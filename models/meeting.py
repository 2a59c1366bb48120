"""How the ranks of one server find each other."""

import socket
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

from torch._C._distributed_c10d import FileStore, PrefixStore, Store, TCPStore
from torch.distributed import ProcessGroupGloo

from corymb.models.gloo_group import GlooGroup

LOOPBACK = "127.0.0.1"


@dataclass(frozen=True, slots=True)
class Meeting:
    """One rank's invitation. Ranks of one host meet at a file, those of several at an address of the first."""

    rank: int
    size: int
    local_size: int  # ranks on this host
    place: Path | tuple[str, int]
    start_timeout_s: float
    step_timeout_s: float  # the longest that one rank waits for another between two steps

    @property
    def local_rank(self) -> int:
        """This rank among those of its host."""
        return self.rank % self.local_size


class Ranks:
    """The ranks of one server, met. Owns the store."""

    def __init__(self, meeting: Meeting) -> None:
        """Waits for all of them."""
        self.meeting = meeting
        self.store = _store(meeting)
        self.host = own_address(meeting)

    def group(self, name: str) -> GlooGroup:
        """A group of its own, for one thread; all ranks ask for the same names in the same order."""
        options = ProcessGroupGloo._Options()  # type: ignore[attr-defined]
        options._devices = [ProcessGroupGloo.create_device(hostname=self.host)]
        options._timeout = timedelta(seconds=self.meeting.step_timeout_s)
        store = PrefixStore(name, self.store)
        return GlooGroup(ProcessGroupGloo(store, self.meeting.rank, self.meeting.size, options))  # type: ignore[arg-type]


def own_address(meeting: Meeting) -> str:
    """The address that other ranks reach this one at."""
    if isinstance(meeting.place, Path):
        return LOOPBACK
    host, port = meeting.place
    [(family, _, _, _, where), *_] = socket.getaddrinfo(host, port, socket.AF_INET, socket.SOCK_DGRAM)
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        probe.connect(where)  # sends nothing: the kernel only chooses a route
        return str(probe.getsockname()[0])


def _store(meeting: Meeting) -> Store:
    limit = timedelta(seconds=meeting.start_timeout_s)
    if isinstance(meeting.place, Path):
        store = FileStore(str(meeting.place), meeting.size)
        store.set_timeout(limit)
        return store
    host, port = meeting.place
    listener = None
    if meeting.rank == 0:  # the store would listen on every address
        listener = socket.create_server((host, port)).detach()
    return TCPStore(
        host,
        port,
        meeting.size,
        is_master=meeting.rank == 0,
        timeout=limit,
        wait_for_workers=False,
        master_listen_fd=listener,
    )
