"""Whole servers with the test models: what an operator and a client see of processes."""

import contextlib
import json
import re
import signal
import socket
import subprocess
import threading
import time

import httpx
import msgspec
import psutil
import pytest
import zmq

from corymb.scheduler.messages import Abort, Generate, Sampling

pytestmark = pytest.mark.server

SLOW = ("--test-failpoint", "scheduler.slow_step_s=0.02")
LONG = {"prompt": "TAPE " + json.dumps("x" * 4000), "max_tokens": 4000, "temperature": 0}


@pytest.fixture(scope="module")
def server(serving):
    """A tape server that no test ends."""
    with serving("corymb/tape") as server:
        yield server


@pytest.fixture(scope="module")
def slow_server(serving):
    """One that takes its time for each token."""
    with serving("corymb/tape", *SLOW) as server:
        yield server


def complete(server, **body):
    return server.client.post("/v1/completions", json={"model": "tape", "temperature": 0, **body})


def metric(server, name):
    """The sum of a metric's samples."""
    text = server.client.get("/metrics").text
    found = re.findall(rf"^corymb_{name}(?:{{.*}})? (\S+)$", text, re.MULTILINE)
    assert found, name
    return sum(map(float, found))


def post(server, *, stream):
    """A connection that asked for thousands of tokens."""
    sock = socket.create_connection(("127.0.0.1", server.port))
    content = json.dumps({"model": "tape", **LONG, "stream": stream}).encode()
    head = "POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
    sock.sendall(f"{head}Content-Length: {len(content)}\r\n\r\n".encode() + content)
    return sock


class Stream:
    """One streamed completion, read by a thread."""

    def __init__(self, server, **body):
        self.events = []
        self.status = 0
        self.ended_s = 0.0
        self.cut = ""
        self._server = server
        self._body = {"model": "tape", **LONG, "stream": True, **body}
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def _read(self):
        try:
            with httpx.stream("POST", f"{self._server.url}/v1/completions", json=self._body, timeout=60) as response:
                self.status = response.status_code
                for line in response.iter_lines():
                    if line.startswith("data: "):
                        self.events.append(line[6:])
        except httpx.TransportError as error:
            self.cut = repr(error)
        self.ended_s = time.monotonic()

    def wait(self, timeout_s):
        self._thread.join(timeout_s)
        assert not self._thread.is_alive(), "the stream is still open"
        assert not self.cut

    @property
    def error(self):
        return next((json.loads(event)["error"] for event in self.events if event.startswith('{"error"')), None)

    @property
    def text(self):
        chunks = [json.loads(event) for event in self.events if event.startswith("{") and '"choices"' in event]
        return "".join(chunk["choices"][0]["text"] for chunk in chunks if chunk["choices"])


def streams(server, count, **body):
    """So many streams, each with its first event."""
    opened = [Stream(server, **body) for _ in range(count)]
    server.wait_for(lambda: all(stream.events for stream in opened), 20)
    return opened


def test_long_prompts_are_computed_in_chunks_unless_told_otherwise(server):
    assert server.client.get("/server_info").json()["chunked_prefill_size"] == 2048


def test_tape_is_answered(server):
    response = complete(server, prompt='TAPE "hello"', max_tokens=20)
    assert response.json()["choices"][0]["text"] == "hello"
    assert response.json()["usage"]["completion_tokens"] == 6


@pytest.mark.parametrize("name", ["main", "detokenizer"])
def test_torch_stays_out_of(server, name):
    process = psutil.Process(server.process.pid) if name == "main" else server.children[name]
    mapped = {mapping.path.rpartition("/")[2] for mapping in process.memory_maps()}
    assert not {file for file in mapped if file.startswith(("libtorch", "libc10"))}
    assert process.memory_info().rss < 250 << 20


def test_timeline_has_a_line_a_stage_and_a_command_that_works(server):
    log = server.log
    for stage in ("model", "weights", "pools", "ready"):
        assert re.search(rf"^  {stage} +\d+\.\d\d s", log, re.MULTILINE), log
    command = log[log.index("  curl ") :].split("\n\n")[0].replace("\\\n", " ")
    answer = subprocess.run(command, shell=True, capture_output=True, text=True, timeout=20, check=True)
    assert json.loads(answer.stdout)["choices"][0]["message"]["role"] == "assistant"


def test_one_port_listens_and_sockets_are_private(server):
    family = [psutil.Process(server.process.pid), *server.children.values()]
    inet = [c for process in family for c in process.net_connections("inet") if c.status == psutil.CONN_LISTEN]
    assert [(c.laddr.ip, c.laddr.port) for c in inet] == [("127.0.0.1", server.port)]


def test_noise_on_every_socket_is_dropped(server):
    paths = {
        connection.laddr
        for process in [psutil.Process(server.process.pid), *server.children.values()]
        for connection in process.net_connections("unix")
        if "corymb-" in str(connection.laddr)
    }
    assert len(paths) == 3
    context = zmq.Context()
    for path in paths:
        sock = context.socket(zmq.PUSH)
        sock.connect(f"ipc://{path}")
        for payload in (b"\x80\x04\x95cos\nsystem\n(S'true'\ntR.", bytes(10 << 20), b""):
            sock.send(payload)
        if path.endswith("scheduler-0"):  # well formed, but no HTTP edge would have let it through
            sock.send(msgspec.msgpack.encode(Generate("evil", b"abc", Sampling(max_new_tokens=-5, temperature=-1.0))))
            sock.send(msgspec.msgpack.encode(Abort("nobody")))
        sock.close(linger=5000)
    context.term()
    server.wait_for(lambda: server.log.count("Dropped a malformed message") == 9, 5)
    assert complete(server, prompt='TAPE "still here"').json()["choices"][0]["text"] == "still here"


def test_metrics_follow_usage(server):
    before = {
        name: metric(server, name) for name in ("requests_total", "generation_tokens_total", "prompt_tokens_total")
    }
    usage = complete(server, prompt='TAPE "abc"', n=3, max_tokens=9).json()["usage"]
    assert metric(server, "requests_total") - before["requests_total"] == 1
    assert metric(server, "generation_tokens_total") - before["generation_tokens_total"] == usage["completion_tokens"]
    assert metric(server, "prompt_tokens_total") - before["prompt_tokens_total"] == usage["prompt_tokens"]


def test_metrics_pass_promtool(server, promtool):
    text = server.client.get("/metrics").text
    checked = subprocess.run([promtool, "check", "metrics"], input=text, capture_output=True, text=True, check=False)
    assert (checked.returncode, checked.stdout + checked.stderr) == (0, "")


@pytest.mark.parametrize("stream", [True, False])
def test_client_that_leaves_frees_everything_within_a_second(slow_server, stream):
    server = slow_server
    with post(server, stream=stream):
        server.wait_for(lambda: metric(server, "running_requests") == 1, 5)
    assert server.wait_for(lambda: metric(server, "running_requests") == 0, 5) < 1.2
    assert metric(server, "pool_used_tokens") == 0


def test_hundred_clients_that_drop_at_random_leave_nothing(slow_server):
    server = slow_server

    def drop(index):
        with post(server, stream=bool(index % 2)) as sock:
            until_s = time.monotonic() + 0.01 * index
            sock.settimeout(0.01)
            with contextlib.suppress(TimeoutError):
                while time.monotonic() < until_s and sock.recv(1 << 16):
                    pass

    threads = [threading.Thread(target=drop, args=(index + 1,)) for index in range(100)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    server.wait_for(lambda: metric(server, "running_requests") + metric(server, "queued_requests") == 0, 3)
    assert metric(server, "pool_used_tokens") == 0


@pytest.mark.parametrize("victim", ["scheduler", "detokenizer"])
def test_killed_child_ends_streams_with_an_error_event(serving, victim):
    with serving("corymb/tape", *SLOW) as server:
        children = list(server.children.values())
        opened = streams(server, 8)
        killed_s = time.monotonic()
        server.children[victim].kill()
        for stream in opened:
            stream.wait(5)
            assert stream.ended_s - killed_s <= 2
            assert stream.error["code"] == "engine_dead"
        assert server.wait_exit(10) == 1
        assert not psutil.wait_procs(children, timeout=1)[1]


def test_sigterm_lets_running_and_queued_requests_finish(serving):
    with serving("corymb/tape", "--max-running-requests", "4", *SLOW) as server:
        tape = {"prompt": "TAPE " + json.dumps("y" * 60), "max_tokens": 100}
        running = streams(server, 4, **tape)
        queued = [Stream(server, **tape) for _ in range(2)]
        server.wait_for(lambda: metric(server, "queued_requests") == 2, 5)
        server.signal(signal.SIGTERM)
        server.wait_for(lambda: server.get("/health") == 503, 1)
        response = complete(server, prompt="x")
        assert (response.status_code, response.json()["error"]["code"]) == (503, "draining")
        for stream in (*running, *queued):
            stream.wait(20)
            assert stream.text == "y" * 60
            assert stream.events[-1] == "[DONE]"
        assert server.wait_exit(5) == 0


def test_drain_limit_gives_an_error_event(serving):
    with serving("corymb/tape", "--drain-timeout", "1", *SLOW) as server:
        [stream] = streams(server, 1)
        server.signal(signal.SIGTERM)
        stream.wait(6)
        assert "shutting down" in stream.error["message"]
        assert server.wait_exit(5) == 0


def test_health_stays_good_during_a_long_step_with_a_full_queue(serving):
    flags = ("--max-running-requests", "1", "--max-queued-requests", "2", "--heartbeat-timeout", "2")
    with serving("corymb/tape", *flags, "--test-failpoint", "scheduler.slow_step_s=4") as server:
        opened = [Stream(server, max_tokens=1) for _ in range(3)]
        begun_s = time.monotonic()
        while time.monotonic() - begun_s < 3:
            asked_s = time.monotonic()
            assert server.get("/health") == 200
            assert time.monotonic() - asked_s < 1
            time.sleep(0.2)
        assert metric(server, "queued_requests") <= 2
        for stream in opened:
            stream.wait(30)


def test_queue_has_a_bound(serving):
    flags = (
        "--max-running-requests",
        "1",
        "--max-queued-requests",
        "2",
        "--test-failpoint",
        "scheduler.slow_step_s=0.02",
    )
    with serving("corymb/tape", *flags) as server:
        [first] = streams(server, 1, max_tokens=200)
        waiting = [Stream(server, max_tokens=2) for _ in range(2)]
        server.wait_for(lambda: metric(server, "queued_requests") == 2, 5)
        for _ in range(2):
            asked_s = time.monotonic()
            response = complete(server, prompt="x")
            assert response.status_code == 503
            assert response.json()["error"]["code"] == "queue_full"
            assert response.headers["retry-after"]
            assert time.monotonic() - asked_s < 1
        for stream in (first, *waiting):
            stream.wait(20)
            assert stream.error is None


def test_waiting_in_the_queue_has_a_limit(serving):
    flags = ("--max-running-requests", "1", "--queue-timeout", "1", *SLOW)
    with serving("corymb/tape", *flags) as server:
        [running] = streams(server, 1, max_tokens=150)
        asked_s = time.monotonic()
        response = complete(server, prompt="x")
        assert response.status_code == 503
        assert "queue" in response.json()["error"]["message"]
        assert 1 <= time.monotonic() - asked_s <= 2
        running.wait(20)
        assert running.error is None


TRACED = ("--speculative-algorithm", "NGRAM", "--speculative-trace")


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--prot", "1"], "Unknown flag --prot. Did you mean --port?"),
        (["/nowhere/at/all"], "/nowhere/at/all"),
        (["corymb/tape", "--context-length", "999999"], "--context-length 999999 is above"),
        (["corymb/tape", "--chat-template", "/nowhere.jinja"], "/nowhere.jinja"),
        (["corymb/tape", "--host", "203.0.113.1"], "203.0.113.1"),
        (
            ["corymb/tape", *TRACED, "/nowhere/trace.jsonl"],
            "--speculative-trace /nowhere/trace.jsonl cannot be written",
        ),
    ],
)
def test_wrong_start_is_one_sentence_and_status_2(servers, arguments, sentence):
    wrong = [*servers.SERVE, *arguments]
    ended = subprocess.run(wrong, capture_output=True, text=True, env=servers.environment(), check=False)
    assert ended.returncode == 2, ended.stderr
    assert sentence in ended.stderr
    assert ended.stderr.count("\n") == 1, ended.stderr


def test_busy_port_is_one_sentence_and_status_2(server, servers):
    flags = ("corymb/tape", "--port", str(server.port))
    ended = subprocess.run([*servers.SERVE, *flags], capture_output=True, text=True, timeout=30, check=False)
    assert ended.returncode == 2
    assert f"Port {server.port} on 127.0.0.1 is in use; choose another with --port" in ended.stderr
    assert ended.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("flags", "env"),
    [((), {"CORYMB_API_KEY": "s3cret-key"}), (("--api-key", "s3cret-key"), {}), (("--api-key=s3cret-key",), {})],
)
def test_key_is_not_in_any_process_list(serving, flags, env):
    with serving("corymb/tape", *flags, key="s3cret-key", env=env) as server:
        assert server.client.get("/v1/models").status_code == 200
        assert httpx.get(f"{server.url}/v1/models").status_code == 401
        assert server.client.post("/v1/completions", json={"model": "tape", "prompt": 'TAPE "a"'}).status_code == 200
        family = [psutil.Process(server.process.pid), *server.children.values()]
        assert "s3cret-key" not in repr([process.cmdline() for process in family])
        assert all("s3cret-key" not in repr(child.environ()) for child in server.children.values())
        assert "s3cret-key" not in server.log
        assert "s3cret-key" not in server.client.get("/get_server_info").text
