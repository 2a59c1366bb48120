"""The compiler process: knows the vocabulary, and forks a process for each grammar, which may be killed."""

import ctypes
import logging
import os
import selectors
import signal
import sys
import time
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import NoReturn, cast

import msgspec

from corymb.models.grammar_backends import Backend, Name, make_backend
from corymb.serve.compiling import (
    LENGTH_BYTES,
    Begin,
    Cancel,
    Compile,
    Compiled,
    Order,
    compile_alone,
    frame,
    out_of_time,
    silent,
)
from corymb.serve.vocabulary import read_vocabulary

_READ_BYTES = 1 << 16
_PR_SET_PDEATHSIG = 1


@dataclass(slots=True)
class Work:
    """A child that compiles one grammar."""

    id: int
    pid: int
    pipe: int  # it writes its answer here and closes it
    due_s: float
    answer: bytearray = field(default_factory=bytearray)

    @property
    def complete(self) -> bool:
        """Whether all of the answer has come."""
        size = int.from_bytes(self.answer[:LENGTH_BYTES], "little")
        return 0 < size == len(self.answer) - LENGTH_BYTES


class Foreman:
    """Owns the children. Reads orders from standard input until it closes; answers on `answers`."""

    def __init__(self, begin: Begin, backend: Backend, answers: int) -> None:
        self._begin = begin
        self._backend = backend
        self._answers = answers
        self._waiting: deque[Compile] = deque()
        self._working: dict[int, Work] = {}  # by pipe
        self._selector = selectors.DefaultSelector()
        self._selector.register(0, selectors.EVENT_READ)

    def say_hello(self) -> None:
        """Tells that grammars are compiled from now on."""
        self._tell(frame(Compiled(0)))

    def run(self, frames: "Frames") -> None:
        """Works until nobody gives orders."""
        while frames.open:
            for key, _ in self._selector.select(self._patience_s()):
                if key.fd == 0:
                    for order in frames.read():
                        self.obey(order)
                else:
                    self._listen(self._working[key.fd])
            self._end_late()
            self._start()

    def _patience_s(self) -> float | None:
        if not self._working:
            return None
        return max(min(work.due_s for work in self._working.values()) - time.monotonic(), 0.0)

    def obey(self, order: Order) -> None:
        """Takes one order."""
        if isinstance(order, Compile):
            self._waiting.append(order)
        elif isinstance(order, Cancel):
            self._waiting = deque(each for each in self._waiting if each.id != order.id)
            for work in [each for each in self._working.values() if each.id == order.id]:
                self._end(work)

    def _start(self) -> None:
        while self._waiting and len(self._working) < self._begin.at_once:
            order, limits = self._waiting.popleft(), self._begin.limits
            reader, writer = os.pipe()
            pid = os.fork()
            if pid == 0:
                os.close(reader)
                _compile_and_exit(order, self._backend, self._begin, writer)
            os.close(writer)
            work = Work(order.id, pid, reader, time.monotonic() + limits.seconds)
            self._working[reader] = work
            self._selector.register(reader, selectors.EVENT_READ)

    def _listen(self, work: Work) -> None:
        part = os.read(work.pipe, _READ_BYTES)
        if part:
            work.answer += part
            return
        status = self._end(work)
        # Where memory fails, the library may give up without a word.
        self._tell(bytes(work.answer) if work.complete else frame(silent(work.id, status)))

    def _end_late(self) -> None:
        now_s = time.monotonic()
        for work in [each for each in self._working.values() if each.due_s <= now_s]:
            self._end(work)
            self._tell(frame(out_of_time(work.id, self._begin.limits)))

    def _end(self, work: Work) -> int:
        """Ends a child; returns its wait status."""
        del self._working[work.pipe]
        self._selector.unregister(work.pipe)
        os.close(work.pipe)
        os.kill(work.pid, signal.SIGKILL)  # it is ours until it is waited for, ended or not
        return os.waitpid(work.pid, 0)[1]

    def _tell(self, answer: bytes) -> None:
        view = memoryview(answer)
        while view:
            view = view[os.write(self._answers, view) :]


class Frames:
    """Orders from standard input."""

    def __init__(self) -> None:
        self.open = True
        self._decoder = msgspec.msgpack.Decoder(Order)
        self._buffer = bytearray()

    def read(self) -> Iterator[Order]:
        """Those that one read completes."""
        part = os.read(0, _READ_BYTES)
        self.open = bool(part)
        self._buffer += part
        while len(self._buffer) >= LENGTH_BYTES:
            end = LENGTH_BYTES + int.from_bytes(self._buffer[:LENGTH_BYTES], "little")
            if len(self._buffer) < end:
                return
            yield self._decoder.decode(self._buffer[LENGTH_BYTES:end])
            del self._buffer[:end]


def _compile_and_exit(order: Compile, backend: Backend, begin: Begin, writer: int) -> NoReturn:
    """The child's whole life. Whatever goes wrong ends it without an answer, which its parent can tell."""
    try:
        _die_with_parent()
        answer = frame(compile_alone(order, backend, begin.limits, begin.vocab_size))
        with os.fdopen(writer, "wb") as pipe:
            pipe.write(answer)
    except Exception as error:
        logging.getLogger(__name__).error("Compiling a grammar failed.", exc_info=error)
    finally:
        os._exit(0)


def _die_with_parent() -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def main() -> None:
    """Runs until standard input closes."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # signals are for the main process to decide on
    _die_with_parent()
    answers = os.dup(1)
    os.dup2(2, 1)  # libraries that print must not print into the answers
    frames = Frames()
    orders: list[Order] = []
    while frames.open and not orders:
        orders += frames.read()
    if not orders or not isinstance(orders[0], Begin):
        return
    begin = orders[0]
    vocabulary = read_vocabulary(
        Path(begin.tokenizer_folder), vocab_size=begin.vocab_size, eos_ids=frozenset(begin.eos_ids)
    )
    foreman = Foreman(begin, make_backend(cast("Name", begin.backend), vocabulary), answers)
    foreman.say_hello()
    for order in orders[1:]:
        foreman.obey(order)
    foreman.run(frames)


if __name__ == "__main__":
    main()
