"""A server on two hosts: network namespaces with a cable between them. Only node 0 serves HTTP."""

import contextlib
import os
import shutil
import subprocess
import threading
import time
from collections.abc import Iterator

import httpx
import psutil
import pytest

pytestmark = [pytest.mark.server, pytest.mark.timeout(300)]

NODES = ("corymb-a", "corymb-b")
STORE = "10.77.31.1:29500"  # of node 0, on the cable between the nodes
CLIENTS = "10.77.32.1"  # of node 0, on its cable to this process
PROMPT, TEXT = "ab" * 50, "njpmkwbdfzjowwktjtbfhozhfgmivkiu"


def ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True, text=True)


@pytest.fixture
def hosts() -> Iterator[None]:
    if shutil.which("ip") is None or os.geteuid() != 0:
        assert not os.environ.get("CI"), "CI has iproute2 and is root: see .ci/run"
        pytest.skip("needs iproute2, and root's rights for network namespaces")
    remove()
    try:
        for node in NODES:
            ip("netns", "add", node)
            ip("-n", node, "link", "set", "lo", "up")
        ip("link", "add", "cable", "netns", NODES[0], "type", "veth", "peer", "name", "cable", "netns", NODES[1])
        ip("link", "add", "corymb-http", "type", "veth", "peer", "name", "http", "netns", NODES[0])
        for index, node in enumerate(NODES):
            ip("-n", node, "addr", "add", f"10.77.31.{index + 1}/24", "dev", "cable")
            ip("-n", node, "link", "set", "cable", "up")
        ip("-n", NODES[0], "addr", "add", f"{CLIENTS}/24", "dev", "http")
        ip("-n", NODES[0], "link", "set", "http", "up")
        ip("addr", "add", "10.77.32.2/24", "dev", "corymb-http")
        ip("link", "set", "corymb-http", "up")
        yield
    finally:
        remove()


def remove() -> None:
    for node in NODES:
        subprocess.run(["ip", "netns", "del", node], check=False, capture_output=True)
    subprocess.run(["ip", "link", "del", "corymb-http"], check=False, capture_output=True)


@pytest.fixture
def pair(hosts, serving, servers):
    """Both nodes, ready; node 1 is started first."""
    flags = ("corymb/hash", "--tp-size", "2", "--nnodes", "2", "--dist-init-addr", STORE, "--check-plans")

    def program(node: int) -> tuple[str, ...]:
        return ("ip", "netns", "exec", NODES[node], *servers.SERVE)

    with contextlib.ExitStack() as stack:
        further = stack.enter_context(serving(*flags, "--node-rank", "1", program=program(1), ready=False))
        first = stack.enter_context(serving(*flags, "--host", CLIENTS, program=program(0), ready=False))
        first.wait_ready()
        first.client.base_url = f"http://{CLIENTS}:{first.port}"
        yield first, further


class Stream:
    """An endless answer."""

    def __init__(self, first) -> None:
        self.lines: list[str] = []
        self.ended_s = 0.0
        self._url = f"{first.client.base_url}/v1/completions"
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def _read(self) -> None:
        body = {"prompt": PROMPT, "max_tokens": 100_000, "ignore_eos": True, "stream": True}
        with httpx.stream("POST", self._url, json=body, timeout=60) as response:
            for line in response.iter_lines():
                self.lines.append(line)
        self.ended_s = time.monotonic()

    def check_ended(self, lost_s: float) -> None:
        self._thread.join(10)
        assert not self._thread.is_alive(), "the stream is still open"
        assert self.ended_s - lost_s <= 2
        assert '"code":"engine_dead"' in "".join(self.lines[-4:])


def family(*nodes) -> list[psutil.Process]:
    return [process for node in nodes for process in psutil.Process(node.process.pid).children(recursive=True)]


def left(processes: list[psutil.Process]) -> list[psutil.Process]:
    """Those that still run after a second; a dead one whose parent was killed waits for somebody to bury it."""
    _, alive = psutil.wait_procs(processes, timeout=1)
    return [process for process in alive if process.status() != psutil.STATUS_ZOMBIE]


def test_two_hosts_answer_as_one_until_the_cable_is_cut(pair) -> None:
    first, further = pair
    asked = {"prompt": PROMPT, "max_tokens": 32, "temperature": 0}
    for _ in range(2):
        answer = first.client.post("/v1/completions", json=asked).json()
        assert answer["choices"][0]["text"] == TEXT
    assert answer["usage"]["prompt_tokens_details"]["cached_tokens"] == 99
    assert (len(first.children), len(further.children)) == (2, 1)
    stream, processes = Stream(first), family(first, further)
    first.wait_for(lambda: len(stream.lines) > 3, 20)
    cut_s = time.monotonic()
    ip("-n", NODES[1], "link", "set", "cable", "down")
    stream.check_ended(cut_s)
    assert first.wait_exit(10) == 1
    assert further.wait_exit(10) == 1
    assert not left(processes)
    assert "A node of the server is lost. Node 1 has not been heard of for 1.5 s (--node-timeout)." in first.log
    assert "Node 0 has not been heard of for 1.5 s (--node-timeout)." in further.log


def test_the_end_of_node_1_ends_the_server(pair) -> None:
    first, further = pair
    stream, processes = Stream(first), family(first, further)
    first.wait_for(lambda: len(stream.lines) > 3, 20)
    killed_s = time.monotonic()
    further.process.kill()
    stream.check_ended(killed_s)
    assert first.wait_exit(10) == 1
    assert not left(processes)
    assert "Node 1 is gone" in first.log
