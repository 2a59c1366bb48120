"""A whole server as a test sees it: started on a free port, watched, stopped.

Use it through the fixture `serving`, which holds for all tests:

    @pytest.fixture(scope="module")
    def server(serving):
        with serving("corymb/tape", "--page-size", "16") as server:
            yield server

    def test_models(server):
        assert server.client.get("/v1/models").status_code == 200
"""

import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import httpx
import psutil

CACHE = Path(tempfile.gettempdir()) / f"corymb-test-cache-{os.getuid()}"


class Server:
    """One running server. Its log is standard error of all its processes."""

    def __init__(self, process: subprocess.Popen[bytes], port: int, log: Path, keys: dict[str, str]) -> None:
        self.process = process
        self.port = port
        self.url = f"http://127.0.0.1:{port}"
        self.client = httpx.Client(base_url=self.url, timeout=60, headers=keys)
        self._log = log

    @property
    def log(self) -> str:
        """What it printed so far."""
        return self._log.read_text(errors="replace")

    def wait_ready(self, timeout_s: float = 120.0) -> None:
        """Waits for the ready line."""
        self.wait_for(lambda: "\n  ready " in self.log, timeout_s)

    def wait_for(self, condition: Callable[[], object], timeout_s: float) -> float:
        """Waits until it holds; returns after how long. Fails at once when the server ends before."""
        begun_s = time.monotonic()
        while not condition():
            assert self.process.poll() is None, f"the server ended with {self.process.returncode}:\n{self.log}"
            assert time.monotonic() - begun_s < timeout_s, f"not within {timeout_s} s:\n{self.log}"
            time.sleep(0.02)
        return time.monotonic() - begun_s

    @property
    def children(self) -> dict[str, psutil.Process]:
        """Its child processes: "scheduler" (where there are several, "scheduler-0" and so on) and "detokenizer"."""
        found = {}
        for child in psutil.Process(self.process.pid).children(recursive=True):
            command = " ".join(child.cmdline())
            rank = re.search(r"corymb\.serve\.scheduler_process (\d+)$", command)
            if rank is not None:
                found[f"scheduler-{rank[1]}"] = child
            for name in ("scheduler", "detokenizer"):
                if command.endswith((f"corymb.serve.{name}_process", f"scripted_child.py {name}")):
                    found[name] = child
        if "scheduler-0" in found and "scheduler-1" not in found:
            found["scheduler"] = found.pop("scheduler-0")
        return found

    def signal(self, number: int) -> None:
        """Sends a signal to the main process."""
        self.process.send_signal(number)

    def get(self, path: str) -> int:
        """The status of a GET; 0 where nothing listens any more."""
        try:
            return self.client.get(path).status_code
        except httpx.TransportError:
            return 0

    def wait_exit(self, timeout_s: float) -> int:
        """Waits for the end; returns the exit status."""
        try:
            return self.process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"still running after {timeout_s} s:\n{self.log}") from None


def environment(**more: str) -> dict[str, str]:
    """The environment of servers under test: one thread a process, and a model cache that tests share."""
    return {**os.environ, "CORYMB_CACHE": str(CACHE), "OMP_NUM_THREADS": "1", **more}


SERVE = (sys.executable, "-P", "-m", "corymb.serve")


def free_port() -> int:
    """A port that was free a moment ago."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


@contextmanager
def serving(
    *arguments: str,
    ready: bool = True,
    key: str | None = None,
    env: dict[str, str] | None = None,
    program: Sequence[str] = SERVE,
) -> Iterator[Server]:
    """Starts a server and, at the end, stops it and everything it left behind.

    `ready=False` returns as soon as the process exists. `key` is sent by `client` as a bearer token.
    """
    port = free_port()
    with tempfile.TemporaryDirectory(prefix="corymb-test-") as folder:
        log = Path(folder) / "log"
        with log.open("wb") as out:
            process = subprocess.Popen(
                [*program, *arguments, "--port", str(port)],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                env=environment(**(env or {})),
            )
        server = Server(process, port, log, {"Authorization": f"Bearer {key}"} if key else {})
        try:
            if ready:
                server.wait_ready()
            yield server
        finally:
            server.client.close()
            _end(process)


def _end(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is not None:
        return
    family = psutil.Process(process.pid).children(recursive=True)
    process.terminate()
    for _ in range(50):
        if process.poll() is not None:
            break
        process.send_signal(signal.SIGINT)
        time.sleep(0.1)
    else:
        process.kill()
        process.wait()
    for child in family:
        if child.is_running():
            child.kill()
