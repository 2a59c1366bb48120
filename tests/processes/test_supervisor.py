"""How a server lives and ends, around scripted children: no model, so each test takes about a second."""

import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import httpx
import psutil
import pytest

from corymb.serve.children import commands_of
from corymb.serve.parallel_options import ParallelOptions

PROGRAM = (sys.executable, "-P", str(Path(__file__).with_name("scripted_server.py")))
ENDLESS = 100_000


@pytest.fixture
def start(serving):
    """Starts a scripted server with serve's flags."""

    def start(*arguments, **options):
        return serving(*arguments, program=PROGRAM, **options)

    return start


class Streams:
    """Open streams, each read by a thread of its own."""

    def __init__(self, server, count, tokens):
        self._server = server
        self.texts = [""] * count
        self.ended_s = [0.0] * count
        self._threads = [threading.Thread(target=self._read, args=(i, tokens), daemon=True) for i in range(count)]
        for thread in self._threads:
            thread.start()
        server.wait_for(lambda: all(self.texts), 10)

    def _read(self, index, tokens):
        try:
            with httpx.stream("GET", f"{self._server.url}/generate/{tokens}", timeout=60) as response:
                for chunk in response.iter_text():
                    self.texts[index] += chunk
        except httpx.TransportError as error:
            self.texts[index] += f"cut: {error!r}"
        self.ended_s[index] = time.monotonic()

    def wait(self, timeout_s):
        until_s = time.monotonic() + timeout_s
        for thread in self._threads:
            thread.join(max(0.0, until_s - time.monotonic()))
            assert not thread.is_alive(), "a stream is still open"


def sockets_of(server):
    return Path(re.search(r"^sockets (\S+)$", server.log, re.MULTILINE)[1])


def family(server):
    return [psutil.Process(server.process.pid), *server.children.values()]


def has_ended(process):
    """A zombie has: when its entry goes is up to whoever inherited it from a main process that was killed."""
    try:
        return process.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def assert_nothing_left(processes, folder):
    until_s = time.monotonic() + 5
    while not all(map(has_ended, processes[1:])):
        assert time.monotonic() < until_s, processes
        time.sleep(0.02)
    assert not folder.exists()


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSEGV, signal.SIGABRT], ids=lambda number: number.name)
@pytest.mark.parametrize("victim", ["scheduler", "detokenizer"])
def test_killed_child_ends_every_stream_with_an_error_and_the_server_with_1(start, victim, number):
    with start() as server:
        processes, folder = family(server), sockets_of(server)
        streams = Streams(server, 8, ENDLESS)
        killed_s = time.monotonic()
        server.children[victim].send_signal(number)
        streams.wait(5)
        assert max(streams.ended_s) - killed_s <= 2
        told = re.compile(rf"error: The {victim}\S* process was killed by signal {number:d}\.\n$")
        assert all(map(told.search, streams.texts))
        assert server.get("/live") != 200
        assert server.wait_exit(10) == 1
        assert_nothing_left(processes, folder)
        assert f"was killed by signal {number:d}" in server.log


@pytest.mark.parametrize("stopped", [None, "scheduler", "detokenizer"])
def test_killed_main_leaves_no_child_and_no_socket(start, stopped):
    with start() as server:
        processes, folder = family(server), sockets_of(server)
        if stopped:
            server.children[stopped].suspend()
        server.process.kill()
        server.process.wait()
        assert_nothing_left(processes, folder)


@pytest.mark.parametrize("name", ["scheduler-0", "detokenizer"])
def test_main_that_is_gone_before_it_told_a_child_its_options_leaves_no_socket(servers, tmp_path, name):
    folder = tmp_path / "sockets"
    folder.mkdir()
    command = commands_of(ParallelOptions())[name]
    ended = subprocess.run(command, input=bytes(folder) + b"\n", timeout=60, env=servers.environment(), check=False)
    assert ended.returncode == 1
    assert not folder.exists()


def test_child_that_raises_says_why(start):
    with start("--test-failpoint", "scheduler.raise_at_step=3") as server:
        streams = Streams(server, 1, ENDLESS)
        streams.wait(5)
        assert streams.texts[0].endswith("error: The scheduler-0 process failed.\n")
        assert server.wait_exit(10) == 1
        assert "The scheduler-0 process failed. FailpointError: A step failed on request" in server.log


@pytest.mark.parametrize("process", ["scheduler", "detokenizer"])
def test_child_that_cannot_start_ends_the_server(start, process):
    with start("--test-failpoint", f"{process}.fail_start=1", ready=False) as server:
        assert server.wait_exit(10) == 1
        assert re.search(rf"The {process}\S* process failed\. FailpointError: The start-up failed", server.log)


def test_health_tells_starting_from_ready(start):
    with start("--test-failpoint", "scheduler.slow_start_s=1.5", ready=False) as server:
        server.wait_for(lambda: server.get("/live") == 200, 10)
        assert server.get("/ready") == 503
        response = server.client.get("/generate/1")
        assert (response.status_code, response.text) == (503, "The server is still starting.")
        server.wait_ready(5)
        assert server.get("/ready") == 200


def test_late_start_is_given_up_with_the_name_of_the_stage(start):
    # Long enough for a busy machine to get the child as far as the stage that hangs.
    with start("--startup-timeout", "6", "--test-failpoint", "scheduler.slow_start_s=60", ready=False) as server:
        assert server.wait_exit(20) == 1
        assert re.search(
            r"The start-up took over 6 s \(--startup-timeout\): scheduler-0 in 'weights' for \d s\.", server.log
        )


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signal_during_the_start_ends_at_once(start, number):
    with start("--test-failpoint", "scheduler.slow_start_s=30", ready=False) as server:
        server.wait_for(lambda: server.get("/live") == 200, 10)
        processes = family(server)
        server.signal(number)
        assert server.wait_exit(5) == 128 + number
        assert not psutil.wait_procs(processes[1:], timeout=1)[1]


def test_stopped_scheduler_fails_liveness_and_recovers(start):
    with start("--heartbeat-timeout", "2", "--watchdog-timeout", "60") as server:
        scheduler = server.children["scheduler"]
        scheduler.suspend()
        assert server.wait_for(lambda: server.get("/live") == 503, 5) >= 1
        assert server.get("/metrics") == 200
        assert server.get("/ready") == 503
        scheduler.resume()
        server.wait_for(lambda: server.get("/live") == 200, 5)
        assert server.client.get("/generate/2").text == "a\nb\n"


def test_stopped_main_process_goes_on_where_it_was(start):
    with start("--heartbeat-timeout", "1", "--watchdog-timeout", "2") as server:
        server.signal(signal.SIGSTOP)
        time.sleep(3)
        server.signal(signal.SIGCONT)
        server.wait_for(lambda: server.get("/live") == 200, 5)
        time.sleep(1)
        assert server.client.get("/generate/2").text == "a\nb\n"


@pytest.mark.parametrize("victim", ["scheduler", "detokenizer"])
def test_process_that_stays_silent_ends_the_server(start, victim):
    with start("--heartbeat-timeout", "1", "--watchdog-timeout", "2") as server:
        processes, folder = family(server), sockets_of(server)
        server.children[victim].suspend()
        assert server.wait_exit(10) == 1
        assert "has not been heard of for" in server.log
        assert_nothing_left(processes, folder)


def test_step_that_hangs_ends_the_server(start):
    flags = ("--heartbeat-timeout", "1", "--watchdog-timeout", "2", "--test-failpoint", "scheduler.hang_at_step=3")
    with start(*flags) as server:
        streams = Streams(server, 1, ENDLESS)
        streams.wait(6)
        assert "has been busy with one step for" in streams.texts[0]
        assert server.wait_exit(10) == 1


def test_long_step_is_no_failure(start):
    with start("--heartbeat-timeout", "1", "--test-failpoint", "scheduler.slow_step_s=3") as server:
        streams = threading.Thread(target=httpx.get, args=(f"{server.url}/generate/1",), kwargs={"timeout": 30})
        streams.start()
        until_s = time.monotonic() + 2.5
        while time.monotonic() < until_s:
            asked_s = time.monotonic()
            assert server.get("/ready") == 200
            assert time.monotonic() - asked_s < 1
            time.sleep(0.2)
        streams.join(30)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_drain_lets_open_requests_finish_and_exits_with_0(start, number):
    with start() as server:
        processes, folder = family(server), sockets_of(server)
        streams = Streams(server, 6, 60)
        server.signal(number)
        server.wait_for(lambda: server.get("/ready") == 503, 1)
        assert server.get("/live") == 200
        response = server.client.get("/generate/1")
        assert response.status_code == 503
        assert "shutting down" in response.text
        streams.wait(10)
        assert all(text == "a\nb\n" * 30 for text in streams.texts)
        assert server.wait_exit(5) == 0
        assert_nothing_left(processes, folder)


def test_second_sigterm_does_not_cut_the_drain_short(start):
    with start() as server:
        streams = Streams(server, 1, 60)
        server.signal(signal.SIGTERM)
        time.sleep(0.2)
        server.signal(signal.SIGTERM)
        streams.wait(10)
        assert streams.texts[0] == "a\nb\n" * 30
        assert server.wait_exit(5) == 0


def test_idle_server_ends_at_once(start):
    with start() as server:
        begun_s = time.monotonic()
        server.signal(signal.SIGTERM)
        assert server.wait_exit(5) == 0
        assert time.monotonic() - begun_s < 2


def test_drain_limit_ends_streams_with_an_error(start):
    with start("--drain-timeout", "1") as server:
        streams = Streams(server, 3, ENDLESS)
        begun_s = time.monotonic()
        server.signal(signal.SIGTERM)
        streams.wait(6)
        assert all(
            text.endswith("error: The server is shutting down; the time for open requests is over.\n")
            for text in streams.texts
        )
        assert server.wait_exit(5) == 0
        assert time.monotonic() - begun_s < 6


def test_second_interrupt_stops_at_once(start):
    with start() as server:
        processes, folder = family(server), sockets_of(server)
        streams = Streams(server, 3, ENDLESS)
        begun_s = time.monotonic()
        server.signal(signal.SIGINT)
        time.sleep(0.1)
        server.signal(signal.SIGINT)
        assert server.wait_exit(5) == 130
        assert time.monotonic() - begun_s < 3
        streams.wait(5)
        assert_nothing_left(processes, folder)


def test_busy_port_is_one_sentence(start, servers):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        sentence = f"Port {port} on 127.0.0.1 is in use; choose another with --port"
        from corymb.serve.config import ConfigError, HttpConfig
        from corymb.serve.listener import listen

        with pytest.raises(ConfigError, match=sentence):
            listen(HttpConfig(port=port))


def test_noise_on_every_socket_is_dropped(start):
    with start() as server:
        folder = sockets_of(server)
        names = sorted(path.name for path in folder.iterdir())
        assert names == ["detokenizer", "main", "scheduler-0"]
        send_noise(folder, names)
        server.wait_for(lambda: server.log.count("Dropped a malformed message") >= len(names), 5)
        assert server.client.get("/generate/2").text == "a\nb\n"


def send_noise(folder, names):
    import zmq

    context = zmq.Context()
    for name in names:
        sock = context.socket(zmq.PUSH)
        sock.connect(f"ipc://{folder / name}")
        for payload in (b"\x80\x04\x95bomb", os.urandom(10 << 20), b""):
            sock.send(payload)
        sock.close(linger=2000)
    context.term()


def test_only_the_http_port_listens(start):
    with start() as server:
        listening = [
            connection.laddr.port
            for process in family(server)
            for connection in process.net_connections("inet")
            if connection.status == psutil.CONN_LISTEN
        ]
        assert listening == [server.port]
        assert sockets_of(server).stat().st_mode & 0o777 == 0o700
