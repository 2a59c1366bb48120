"""How the main processes of several nodes join, and how they notice that one is gone."""

import contextlib
import socket
import time
from collections.abc import Callable

import pytest

from corymb.scheduler.messages import Heartbeat, Stage
from corymb.serve.config import ConfigError, ServeConfig, from_flags
from corymb.serve.flags import parser
from corymb.serve.node_link import Answer, Farewell, Hello, NodeLink
from corymb.serve.nodes import Nodes, shared_settings


def config(port: int, *flags: str) -> ServeConfig:
    where = f"127.0.0.1:{port}"
    nodes = ("--tp-size", "4", "--nnodes", "2", "--dist-init-addr", where, "--node-timeout", "1")
    return from_flags(parser("serve").parse(["corymb/tape", *nodes, *flags]))


@pytest.fixture
def port(servers) -> int:
    return servers.free_port() - 1


@pytest.fixture
def nodes(port: int):
    with Nodes(config(port)) as nodes:
        nodes.settle(config(port))
        yield nodes


def until(condition: Callable[[], object], timeout_s: float = 5.0) -> float:
    begun_s = time.monotonic()
    while not condition():
        assert time.monotonic() - begun_s < timeout_s
        time.sleep(0.01)
    return time.monotonic() - begun_s


def join(port: int, *flags: str) -> tuple[NodeLink, Answer]:
    """Joins as node 1."""
    link = NodeLink(socket.create_connection(("127.0.0.1", port + 1)), "Node 0", 1.0)
    own = config(port, "--node-rank", "1", *flags)
    link.send(Hello(own.parallel.node_rank, shared_settings(own)))
    answer = link.wait(5.0)
    assert isinstance(answer, Answer)
    return link, answer


def test_a_node_joins_and_is_heard(port: int, nodes: Nodes) -> None:
    assert nodes.names == ["scheduler-2", "scheduler-3"]
    link, answer = join(port, "--base-gpu-id", "3", "--served-model-name", "other")
    assert answer.refusal == ""
    until(lambda: not nodes.missing)
    said = [Stage("scheduler-2", "weights"), Heartbeat(steps=5, process="scheduler-3")]
    for message in said:
        link.send(message)
    heard = []
    until(lambda: heard.extend(nodes.receive()) or heard == said)
    nodes.status = 3
    nodes.close()
    until(lambda: link.farewell == Farewell(3))


@pytest.mark.parametrize(
    ("flags", "sentence"),
    [
        (["--page-size", "4"], "Node 1 was started with page_size 4, and node 0 with 1."),
        (["--dtype", "float32"], "Node 1 was started with dtype float32, and node 0 with auto."),
        (["--disable-overlap-schedule"], "Node 1 was started with overlap_depth 0, and node 0 with 1."),
    ],
)
def test_a_node_with_other_settings_is_refused(port: int, nodes: Nodes, flags: list[str], sentence: str) -> None:
    _, answer = join(port, *flags)
    assert answer.refusal == sentence
    assert nodes.missing == [1]
    _, answer = join(port)  # it may come back with the right ones
    assert answer.refusal == ""


def test_a_node_too_many_is_refused(port: int, nodes: Nodes) -> None:
    join(port)
    until(lambda: not nodes.missing)
    link = NodeLink(socket.create_connection(("127.0.0.1", port + 1)), "Node 0", 1.0)
    link.send(Hello(1, {}))
    assert "--node-rank 1 is not wanted" in getattr(link.wait(2.0), "refusal", "--node-rank 1 is not wanted")
    assert nodes.lost is None


def test_a_closed_connection_is_a_lost_node_at_once(port: int, nodes: Nodes) -> None:
    link, _ = join(port)
    until(lambda: not nodes.missing)
    link.close()
    assert until(lambda: nodes.lost) < 0.5
    assert str(nodes.lost).startswith("Node 1 is gone: ")


def test_silence_is_a_lost_node(port: int, nodes: Nodes) -> None:
    sock = socket.create_connection(("127.0.0.1", port + 1))
    link = NodeLink(sock, "Node 0", 1.0)
    link.send(Hello(1, shared_settings(config(port))))
    until(lambda: not nodes.missing)
    link.lost = "its beats stop"
    assert 0.5 < until(lambda: nodes.lost) < 1.6
    assert nodes.lost == "Node 1 has not been heard of for 1 s (--node-timeout)."


def test_noise_is_not_let_in(port: int, nodes: Nodes) -> None:
    for noise in (b"GET / HTTP/1.1\r\n\r\n", b"\xff" * 64, b"\0\0\0\2\xc1\xc1"):
        with socket.create_connection(("127.0.0.1", port + 1)) as sock:
            sock.sendall(noise)
            sock.settimeout(5)
            with contextlib.suppress(ConnectionResetError):
                while sock.recv(1024):  # beats, then the end
                    pass
    _, answer = join(port)
    assert answer.refusal == ""
    assert nodes.lost is None


def test_an_address_of_another_host_is_refused(servers) -> None:
    with pytest.raises(ConfigError, match=r"--dist-init-addr 203.0.113.1:29500: Cannot assign requested address."):
        Nodes(from_flags(parser("serve").parse(["--tp-size=2", "--nnodes=2", "--dist-init-addr=203.0.113.1:29500"])))
