"""Typed messages over ZeroMQ `ipc://` sockets in a private directory.

Only PUSH and PULL are used: at a high-water mark they wait, they never drop. Nothing else on the host can reach the
sockets (the directory is 0700), and still every message is checked: what does not decode is logged and dropped.
"""

import logging
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Generic, TypeVar

import msgspec
import zmq

from corymb.scheduler.messages import MAX_MESSAGE_BYTES

logger = logging.getLogger(__name__)

T = TypeVar("T")

MAIN = "main"
SCHEDULER = "scheduler-0"
DETOKENIZER = "detokenizer"


def scheduler_name(rank: int) -> str:
    """The name of a rank's scheduler process."""
    return f"scheduler-{rank}"


_MAX_PATH_BYTES = 100  # a Unix socket's path holds 107 bytes
_BATCH = 256  # messages taken at one go, so that a flood cannot starve the caller
_UNBOUNDED = 0


class MessageTooLarge(ValueError):
    """A message of ours is above the size that receivers accept."""


@contextmanager
def private_directory() -> Iterator[Path]:
    """Makes a directory with a random name that only this user can enter; removes it with everything in it."""
    folder = Path(tempfile.mkdtemp(prefix="corymb-"))
    if len(bytes(folder)) > _MAX_PATH_BYTES - len(DETOKENIZER):
        folder.rmdir()
        folder = Path(tempfile.mkdtemp(prefix="corymb-", dir="/tmp"))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def address(folder: Path, name: str) -> str:
    """The address of the process `name`."""
    return f"ipc://{folder / name}"


class Outbox:
    """Sends messages to one process. Belongs to one thread.

    `bounded` makes `send` wait while the receiver is far behind: the sender slows down to what the receiver can do.
    `close` drops what is queued, or waits up to `linger_s` until it went out. Even then the tail is lost where more
    than the high-water mark is unread at the receiver: libzmq gives up a full connection whose other end closed.
    """

    def __init__(self, to: str, *, bounded: bool, linger_s: float = 0.0) -> None:
        self._encoder = msgspec.msgpack.Encoder()
        self._context = zmq.Context()
        self._socket: zmq.Socket[bytes] = self._context.socket(zmq.PUSH)
        self._socket.setsockopt(zmq.SNDHWM, 1000 if bounded else _UNBOUNDED)
        self._socket.setsockopt(zmq.LINGER, round(linger_s * 1000))
        self._socket.connect(to)

    def send(self, message: msgspec.Struct) -> None:
        """Queues one message. Raises MessageTooLarge."""
        payload = self._encoder.encode(message)
        if len(payload) > MAX_MESSAGE_BYTES:
            name = type(message).__name__
            raise MessageTooLarge(f"A {name} of {len(payload):,} bytes is above {MAX_MESSAGE_BYTES:,}.")
        self._socket.send(payload)

    def close(self) -> None:
        """Closes the socket once what is queued went out, or after `linger_s`."""
        self._socket.close()
        self._context.term()

    def __enter__(self) -> "Outbox":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()


class Inbox(Generic[T]):
    """Receives the messages sent to one process, of the given types only. Belongs to one thread."""

    def __init__(self, at: str, types: Any) -> None:
        self._decoder: msgspec.msgpack.Decoder[T] = msgspec.msgpack.Decoder(types)
        self._socket: zmq.Socket[bytes] = zmq.Context.instance().socket(zmq.PULL)
        self._socket.setsockopt(zmq.RCVHWM, 1000)
        self._socket.setsockopt(zmq.MAXMSGSIZE, MAX_MESSAGE_BYTES)
        self._socket.setsockopt(zmq.LINGER, 0)
        self._socket.bind(at)

    @property
    def fd(self) -> int:
        """Readable, once, when messages arrive: then call `receive` until it gives none."""
        return int(self._socket.getsockopt(zmq.FD))

    def receive(self, timeout_s: float = 0.0) -> list[T]:
        """Takes the messages that are there, waiting for the first one up to `timeout_s`."""
        messages: list[T] = []
        while len(messages) < _BATCH:
            try:
                payload = self._socket.recv(zmq.NOBLOCK)
            except zmq.Again:
                if messages or timeout_s <= 0 or not self._socket.poll(int(timeout_s * 1000)):
                    break
                continue
            self._decode(payload, messages)
        return messages

    def _decode(self, payload: bytes, into: list[T]) -> None:
        try:
            into.append(self._decoder.decode(payload))
        except (msgspec.MsgspecError, ValueError, RecursionError) as error:
            logger.warning("Dropped a malformed message of %d bytes: %s", len(payload), error)

    @property
    def address(self) -> str:
        """Where senders reach it."""
        return self._socket.getsockopt_string(zmq.LAST_ENDPOINT)

    def close(self) -> None:
        """Closes the socket."""
        self._socket.close()

    def __enter__(self) -> "Inbox[T]":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()
