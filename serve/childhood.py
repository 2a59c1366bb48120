"""What every child process does for itself: hear its options, end with its parent, tell how it is."""

import ctypes
import logging
import os
import queue
import shutil
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NoReturn

import msgspec

from corymb.models.errors import ModelError
from corymb.scheduler.messages import Failed, Heartbeat, Ready, Stage
from corymb.serve.children import ChildOptions
from corymb.serve.log import set_up_logging
from corymb.serve.transport import MAIN, Outbox, address

_HEARTBEAT_S = 0.5
_LAST_WORD_S = 10.0  # why a process failed must reach a main process that a busy machine holds up
_PR_SET_PDEATHSIG = 1


class Childhood:
    """A child's side of its birth. Make it before anything slow is imported."""

    def __init__(self, name: str, *, at_parents_death: signal.Signals) -> None:
        """`at_parents_death` comes from the kernel: SIGKILL where a device may hold the process up, and SIGCONT, for a
        process that somebody stopped, where it is left to the end of standard input to end and clean up.
        """
        self.name = name
        self._born_s = time.monotonic()
        self._lines: queue.SimpleQueue[bytes] = queue.SimpleQueue()
        # Signals are for the main process to decide on, and our end is too.
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        if sys.platform == "linux":
            ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, at_parents_death)
        threading.Thread(target=self._listen, name="parent", daemon=True).start()

    def run(self, work: Callable[[ChildOptions, "Parent"], None]) -> NoReturn:
        """Waits for the options and works: the process boundary, where whatever goes wrong is told and logged."""
        imports_s = time.monotonic() - self._born_s
        options = msgspec.json.decode(self._lines.get(), type=ChildOptions)
        set_up_logging(options.config.http.log_level)
        parent = Parent(self.name, Path(options.sockets), imports_s=imports_s)
        try:
            work(options, parent)
        except ModelError as error:
            parent.failed(str(error))
        except Exception as error:
            logging.getLogger(self.name).error("The %s process ends.", self.name, exc_info=error)
            parent.failed(_sentence(error))
        parent.close()
        os._exit(1)  # threads of the device may still be busy

    def _listen(self) -> None:
        """Reads standard input; when it closes, the main process is gone and this one goes too."""
        sockets = sys.stdin.buffer.readline().removesuffix(b"\n")
        self._lines.put(sys.stdin.buffer.readline())
        sys.stdin.buffer.read()
        if sockets:
            shutil.rmtree(os.fsdecode(sockets), ignore_errors=True)  # a main process that was killed could not
        os._exit(1)


def _sentence(error: Exception) -> str:
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text}"[:1000]


class Pulse:
    """Since when the process has been in one turn of its loop. Written by the loop, read by the heartbeat."""

    def __init__(self) -> None:
        self.turns = 0
        self._since_s = 0.0  # 0: it waits for work

    def work(self) -> None:
        """A turn begins."""
        self.turns += 1
        self._since_s = time.monotonic()

    def rest(self) -> None:
        """The loop waits for work."""
        self._since_s = 0.0

    @property
    def age_s(self) -> float:
        """0 while the loop waits for work."""
        since_s = self._since_s
        return time.monotonic() - since_s if since_s else 0.0


class Parent:
    """The main process, as a child tells it things. Each thread needs its own."""

    def __init__(self, name: str, sockets: Path, *, imports_s: float = 0.0) -> None:
        self.name = name
        self.imports_s = imports_s  # what the imports took, before the options came
        self._main = address(sockets, MAIN)
        self._outbox = Outbox(self._main, bounded=True)

    @contextmanager
    def stage(self, name: str, detail: str = "") -> Iterator[None]:
        """Tells of a stage of the start-up while it lasts and when it is over."""
        begun_s = time.monotonic()
        self._outbox.send(Stage(self.name, name))
        yield
        self._outbox.send(Stage(self.name, name, seconds=time.monotonic() - begun_s, detail=detail))

    def ready(self, info: dict[str, int | float | str | bool | None]) -> None:
        """Tells that the start-up is over."""
        self._outbox.send(Ready(process=self.name, pid=os.getpid(), info=info))

    def failed(self, message: str) -> None:
        """Tells why the process ends, and waits until that went out."""
        # On a connection of its own, which holds nothing else: the usual one may be full, and then closing loses words.
        with Outbox(self._main, bounded=True, linger_s=_LAST_WORD_S) as outbox:
            outbox.send(Failed(process=self.name, message=message))

    def send(self, message: msgspec.Struct) -> None:
        """Sends anything else."""
        self._outbox.send(message)

    def close(self) -> None:
        """Closes the socket; what is queued does not matter any more."""
        self._outbox.close()


def start_heartbeat(name: str, sockets: Path, pulse: Pulse) -> None:
    """Tells the main process twice a second that this process is alive, until it is not."""

    def beat() -> None:
        with Outbox(address(sockets, MAIN), bounded=True) as outbox:
            while True:
                outbox.send(Heartbeat(steps=pulse.turns, step_age_s=pulse.age_s, process=name))
                time.sleep(_HEARTBEAT_S)

    threading.Thread(target=beat, name="heartbeat", daemon=True).start()
