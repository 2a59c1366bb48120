"""A connection between the main processes of two nodes: typed messages, and beats that tell that the other one lives.

Its threads see to the beats, so an event loop that is busy does not look like a node that is lost.
"""

import logging
import queue
import socket
import threading
import time

import msgspec

from corymb.scheduler.messages import Failed, Heartbeat, Message, Ready, Stage

logger = logging.getLogger(__name__)

Setting = int | float | str | bool | None

BEATS = 5  # that must fail to come before the other node counts as lost
_MAX_BYTES = 1 << 20
_LENGTH_BYTES = 4


class Hello(Message, frozen=True):
    """A node wants to join."""

    node_rank: int
    settings: dict[str, Setting]  # that all nodes must share


class Answer(Message, frozen=True):
    """Whether it may."""

    refusal: str = ""  # in one sentence; empty: it may


class Beat(Message, frozen=True):
    """Still here."""


class Farewell(Message, frozen=True):
    """The server ends, with this exit status."""

    status: int


Wire = Hello | Answer | Beat | Farewell | Stage | Ready | Failed | Heartbeat


class NodeLink:
    """Owns a connected socket and two threads. What comes is taken with `receive`; `lost` says when nothing will."""

    def __init__(self, sock: socket.socket, other: str, timeout_s: float) -> None:
        """`other` names the other node in sentences; `timeout_s`: it is lost after so much silence."""
        self.lost: str | None = None
        self.farewell: Farewell | None = None  # what the other node said last
        self._other = other
        self._timeout_s = timeout_s
        self._socket = sock
        self._socket.settimeout(timeout_s)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._encoder = msgspec.msgpack.Encoder()
        self._decoder = msgspec.msgpack.Decoder(Wire)
        self._sending = threading.Lock()
        self._received: queue.SimpleQueue[Wire] = queue.SimpleQueue()
        for work in (self._read, self._beat):
            threading.Thread(target=work, name=f"link to {other}", daemon=True).start()

    def call(self, name: str) -> None:
        """Names the other node anew."""
        self._other = name

    def send(self, message: msgspec.Struct) -> None:
        """Sends one message; one that cannot be sent is noticed as a loss."""
        payload = self._encoder.encode(message)
        try:
            with self._sending:
                self._socket.sendall(len(payload).to_bytes(_LENGTH_BYTES, "big") + payload)
        except OSError as error:
            self._lose(f"{self._other} is gone: {error.strerror or error}.")

    def receive(self) -> list[Wire]:
        """What has come since the last call."""
        messages = []
        while not self._received.empty():
            messages.append(self._received.get())
        return messages

    def wait(self, timeout_s: float) -> Wire | None:
        """The next message; None when none comes in time or the link is lost."""
        until_s = time.monotonic() + timeout_s
        while self.lost is None and time.monotonic() < until_s:
            try:
                return self._received.get(timeout=0.05)
            except queue.Empty:
                continue
        return None

    def close(self) -> None:
        """Ends the connection."""
        self._lose("closed")
        self._socket.close()

    def _read(self) -> None:
        try:
            while self.lost is None:
                message = self._decoder.decode(self._exactly(int.from_bytes(self._exactly(_LENGTH_BYTES), "big")))
                if isinstance(message, Farewell):
                    self.farewell = message
                elif not isinstance(message, Beat):
                    self._received.put(message)
        except TimeoutError:
            self._lose(f"{self._other} has not been heard of for {self._timeout_s:g} s (--node-timeout).")
        except (OSError, EOFError) as error:
            self._lose(f"{self._other} is gone: {error}.")
        except (msgspec.MsgspecError, ValueError) as error:
            self._lose(f"{self._other} sent what is no message: {error}.")

    def _exactly(self, count: int) -> bytes:
        if count > _MAX_BYTES:
            raise ValueError(f"{count} bytes")
        got = bytearray()
        while len(got) < count:
            more = self._socket.recv(count - len(got))
            if not more:
                raise EOFError("it has closed the connection")
            got += more
        return bytes(got)

    def _beat(self) -> None:
        while self.lost is None:
            self.send(Beat())
            time.sleep(self._timeout_s / BEATS)

    def _lose(self, why: str) -> None:
        self.lost = self.lost or why
