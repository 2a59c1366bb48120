"""What becomes of a server of several ranks when one of them is late, wrong or dead."""

import json
import subprocess
import threading
import time

import httpx
import psutil
import pytest

pytestmark = pytest.mark.server

SLOW = ("--test-failpoint", "scheduler.slow_step_s=0.02")
TAPE = {"prompt": "TAPE " + json.dumps("x" * 4000), "max_tokens": 4000, "stream": True}


class Stream:
    """A client in the middle of its answer."""

    def __init__(self, server) -> None:
        self.lines: list[str] = []
        self.ended_s = 0.0
        self._url = f"{server.url}/v1/completions"
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def _read(self) -> None:
        with httpx.stream("POST", self._url, json=TAPE, timeout=60) as response:
            for line in response.iter_lines():
                self.lines.append(line)
        self.ended_s = time.monotonic()

    def wait(self) -> None:
        self._thread.join(10)
        assert not self._thread.is_alive(), "the stream is still open"


def listening(server) -> set[str]:
    """Addresses at which any of the server's processes can be reached."""
    family = [psutil.Process(server.process.pid), *server.children.values()]
    inet = [connection for process in family for connection in process.net_connections("inet")]
    return {one.laddr.ip for one in inet if one.status == psutil.CONN_LISTEN}


@pytest.mark.parametrize("rank", [0, 1])
def test_the_death_of_any_rank_ends_every_request_and_leaves_nothing(serving, rank: int) -> None:
    with serving("corymb/tape", "--tp-size", "2", *SLOW) as server:
        children = server.children
        assert set(children) == {"scheduler-0", "scheduler-1", "detokenizer"}
        assert listening(server) == {"127.0.0.1"}
        opened = [Stream(server) for _ in range(4)]
        server.wait_for(lambda: all(stream.lines for stream in opened), 20)
        killed_s = time.monotonic()
        children[f"scheduler-{rank}"].kill()
        for stream in opened:
            stream.wait()
            assert stream.ended_s - killed_s <= 2
            assert '"code":"engine_dead"' in "".join(stream.lines[-4:])
        assert server.wait_exit(10) == 1
        assert not psutil.wait_procs(list(children.values()), timeout=1)[1]
        assert f"The scheduler-{rank} process was killed by signal 9" in server.log


def test_a_failure_of_another_rank_is_told_as_it_is(serving) -> None:
    with serving("corymb/tape", "--tp-size", "2", "--test-failpoint", "scheduler-1.raise_at_step=5") as server:
        stream = Stream(server)
        assert server.wait_exit(10) == 1
        stream.wait()
        assert "The scheduler-1 process failed." in server.log
        assert "The scheduler-0 process" not in server.log


def test_a_rank_that_plans_something_else_ends_the_server_with_the_difference(serving) -> None:
    flags = ("--tp-size", "2", "--check-plans", "--test-failpoint", "scheduler-1.lose_message=3")
    with serving("corymb/hash", *flags) as server:
        for _ in range(2):
            body = {"prompt": "ab", "max_tokens": 2, "temperature": 0}
            assert server.client.post("/v1/completions", json=body).status_code == 200
        begun_s = time.monotonic()
        stream = Stream(server)
        assert server.wait_exit(10) == 1
        stream.wait()
        assert time.monotonic() - begun_s < 5
        assert "Ranks 0 and 1 plan different steps in turn" in server.log
        assert "first differ in 'step', whose digests are" in server.log


def test_the_start_up_limit_names_the_rank_and_its_stage(serving) -> None:
    flags = ("--tp-size", "2", "--startup-timeout", "15", "--test-failpoint", "scheduler-1.slow_start_s=60")
    with serving("corymb/tape", *flags, ready=False) as server:
        assert server.wait_exit(40) == 1
        assert "The start-up took over 15 s (--startup-timeout): scheduler-1 in 'scheduler' for" in server.log


@pytest.mark.parametrize(
    ("flags", "sentence"),
    [
        (["--tp-size", "3", "--nnodes", "2"], "--tp-size 3 cannot be spread evenly over --nnodes 2."),
        (["--tp-size", "2", "--nnodes", "2"], "--nnodes needs --dist-init-addr HOST:PORT"),
        (["--nnodes", "2", "--tp-size", "2", "--node-rank", "2"], "--node-rank 2 is not below --nnodes 2"),
        (["--dist-init-addr", "a:1"], "--dist-init-addr is for several nodes"),
        (["--tp-size", "2", "--nnodes", "2", "--dist-init-addr", "a"], "is not HOST:PORT"),
        (["--base-gpu-id", "1", "--device", "cpu"], "--base-gpu-id and --gpu-id-step need GPUs"),
    ],
)
def test_wishes_that_exclude_each_other_are_refused(servers, flags: list[str], sentence: str) -> None:
    ended = subprocess.run(
        [*servers.SERVE, "corymb/tape", *flags],
        capture_output=True,
        text=True,
        timeout=60,
        env=servers.environment(),
        check=False,
    )
    assert ended.returncode == 2, ended.stderr
    assert sentence in ended.stderr
    assert ended.stderr.count("\n") == 1
