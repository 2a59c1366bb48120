"""What happens in time: clients that leave, queues that fill, engines that end, and the limits on connections."""

import json
import resource
import socket
import threading
import time

import httpx
import pytest

from corymb.serve.http_protocol import MAX_HEAD_BYTES, MAX_HEADERS
from tests.http.client import at_once, chat, complete, events, native, post, refused, tape, text_of
from tests.http.conftest import simulated
from tests.http.simulator import Simulator

HEAD = b"POST %b HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 100\r\n\r\n"
ENDLESS = {"ignore_eos": True, "max_tokens": 8000}


@pytest.fixture
def slow():
    """A server that gives a token every 2 ms."""
    with simulated(simulator=Simulator("tape", step_s=0.002)) as server:
        yield server


def until(condition, timeout_s: float = 5.0) -> float:
    begun_s = time.monotonic()
    while not condition():
        assert time.monotonic() - begun_s < timeout_s
        time.sleep(0.002)
    return time.monotonic() - begun_s


BODIES = [
    ("/v1/completions", {"prompt": "a", **ENDLESS}),
    ("/v1/chat/completions", {"messages": [{"role": "user", "content": tape("a")}], **ENDLESS}),
    ("/v1/completions", {"prompt": ["a", "b", "c"], "n": 2, **ENDLESS}),
    ("/generate", {"text": "a", "sampling_params": {"ignore_eos": True, "max_new_tokens": 8000}}),
    ("/v1/responses", {"input": tape("a" * 900), "max_output_tokens": 8000}),
    ("/v1/messages", {"messages": [{"role": "user", "content": tape("a" * 900)}], "max_tokens": 8000}),
    ("/api/chat", {"messages": [{"role": "user", "content": tape("a" * 900)}]}),
    ("/api/generate", {"prompt": tape("a" * 900)}),
]


@pytest.mark.parametrize(("path", "body"), BODIES, ids=lambda value: str(value)[:30])
def test_a_client_that_leaves_a_stream_ends_its_request(slow, path, body) -> None:
    with slow.client.stream("POST", path, json={**body, "stream": True}) as response:
        lines = response.iter_lines()
        for _ in range(3):
            next(lines)
    assert slow.wait_idle(1.0) < 1.0
    assert slow.engine.num_open == 0


@pytest.mark.parametrize(("path", "body"), BODIES, ids=lambda value: str(value)[:30])
@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_leaves_before_an_answer_ends_its_request(slow, path, body, stream) -> None:
    slow.simulator.paused = True  # it waits in the queue
    with pytest.raises(httpx.ReadTimeout):
        slow.client.post(path, json={**body, "stream": stream}, timeout=0.2)
    assert slow.wait_idle(1.0) < 1.0
    assert slow.engine.num_open == 0


def test_a_client_that_leaves_while_it_sends_asks_nothing(slow) -> None:
    url = httpx.URL(slow.url)
    with socket.create_connection((url.host, url.port)) as sock:
        head = (
            "POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 100\r\n\r\n"
        )
        sock.sendall(head.encode() + b'{"prompt":')
    time.sleep(0.05)
    assert slow.simulator.seen == []


def test_many_clients_that_come_and_go(slow) -> None:
    def visit(seconds: float) -> None:
        body = {"prompt": "a", "stream": True, **ENDLESS}
        with httpx.Client(base_url=slow.url) as client, client.stream("POST", "/v1/completions", json=body) as response:
            begun_s = time.monotonic()
            next(line for line in response.iter_lines() if time.monotonic() - begun_s > seconds)

    at_once([lambda n=n: visit(n * 0.004) for n in range(40)])
    slow.wait_idle(1.0)
    assert slow.engine.num_open == 0


def test_a_full_queue_is_a_503_at_once() -> None:
    with simulated(simulator=Simulator("tape", step_s=0.005, max_running=1, max_queued=2)) as server:
        body = {"prompt": "a", "ignore_eos": True, "max_tokens": 60}
        for stream in (False, True):
            answers = at_once([lambda: post(server, "/v1/completions", {**body, "stream": stream})] * 5)  # noqa: B023
            assert sorted(answer.status_code for answer in answers) == [200, 200, 200, 503, 503]
            for answer in answers:
                if answer.status_code == 503:
                    refused(answer, 503, code="queue_full")
                    assert int(answer.headers["retry-after"]) >= 1


def test_one_refused_choice_refuses_the_request() -> None:
    with simulated(simulator=Simulator("tape", step_s=0.005, max_running=1, max_queued=2)) as server:
        refused(complete(server, ["a"] * 5, max_tokens=60, ignore_eos=True), 503, code="queue_full")
        server.wait_idle()


def error_of(response) -> dict:
    """The error event at the end of a stream."""
    blocks = response.text.split("\n\n")
    assert blocks[-2:] == ["data: [DONE]", ""]
    return json.loads(blocks[-3][6:])["error"]


@pytest.mark.parametrize("body", [{"prompt": "a"}, {"prompt": ["a", "b"]}], ids=str)
def test_an_engine_that_dies_ends_every_answer(body) -> None:
    with simulated(simulator=Simulator("tape", step_s=0.002)) as server:
        results = []

        def ask(stream: bool) -> None:
            results.append((stream, post(server, "/v1/completions", {**body, **ENDLESS, "stream": stream})))

        threads = [threading.Thread(target=ask, args=(stream,)) for stream in (False, True)]
        for thread in threads:
            thread.start()
        until(lambda: len(server.simulator.running) == 2 * (1 if body["prompt"] == "a" else 2))
        time.sleep(0.05)
        server.on_loop(lambda: server.engine.fail("The scheduler ended."))
        for thread in threads:
            thread.join(2)
        for stream, response in results:
            if stream:
                assert error_of(response)["code"] == "engine_dead"
            else:
                refused(response, 503, code="engine_dead")
        assert len(results) == 2
        refused(server.client.get("/health"), 503, code="engine_dead")
        refused(complete(server, "a"), 503, code="engine_dead")


@pytest.mark.parametrize(("state", "code"), [("starting", "not_ready"), ("draining", "draining")])
def test_health_tells_whether_requests_are_taken(state, code) -> None:
    with simulated("tape") as server:
        assert server.client.get("/health").status_code == 200
        assert server.client.get("/health_generate").status_code == 200
        server.engine.state = state
        for path in ("/health", "/ping", "/health_generate"):
            refused(server.client.get(path), 503, code=code)
        refused(complete(server, "a"), 503, code=code)
        assert server.client.get("/metrics").status_code == 200


def test_probes_that_generate_share_one_request() -> None:
    with simulated("tape", health_timeout_s=0.3) as server:
        server.simulator.paused = True
        answers = at_once([lambda: server.client.get("/health_generate")] * 8)
        for answer in answers:
            refused(answer, 503)
        assert len(server.simulator.seen) == 1
        assert server.client.get("/health").status_code == 200
        server.wait_idle()


def test_the_same_rid_twice_is_refused_while_it_is_open(slow) -> None:
    with slow.client.stream("POST", "/v1/completions", json={"prompt": "a", "rid": "x", "stream": True, **ENDLESS}):
        refused(complete(slow, "a", rid="x"), 400, code="duplicate_rid", param="rid")
    slow.wait_idle()
    assert complete(slow, "a", rid="x", max_tokens=1).status_code == 200


def test_abort_request_ends_one_or_all(slow) -> None:
    def ask(rid: str):
        return complete(slow, ["a", "b"], rid=rid, **ENDLESS).json()

    results = []
    threads = [threading.Thread(target=lambda rid=rid: results.append(ask(rid))) for rid in ("one", "two", "three")]
    for thread in threads:
        thread.start()
    until(lambda: len(slow.simulator.running) == 6)
    refused(post(slow, "/abort_request", {"rid": "other"}), 404, code="rid_not_found")
    refused(post(slow, "/abort_request", {}), 400, param="rid")
    assert post(slow, "/abort_request", {"rid": "one"}).json() == {"success": True, "num_aborted": 2}
    until(lambda: len(slow.simulator.running) == 4)
    assert post(slow, "/abort_request", {"abort_all": True}).json()["num_aborted"] == 4
    for thread in threads:
        thread.join(2)
    assert {choice["finish_reason"] for result in results for choice in result["choices"]} == {"abort"}


def test_flush_waits_for_a_moment(hash_server) -> None:
    for method in ("GET", "POST"):
        assert hash_server.client.request(method, "/flush_cache").json()["success"] is True
    for timeout in ("x", "", "-1", "nan", "1e9"):
        refused(hash_server.client.post(f"/flush_cache?timeout={timeout}"), 400, param="timeout")


def test_a_scheduler_in_a_long_step_answers_no_flush_and_that_is_no_fault() -> None:
    with simulated("tape", flush_timeout_s=0.1) as server:
        server.simulator.paused = True
        assert "long step" in refused(server.client.post("/flush_cache"), 409, code="cache_in_use")["message"]


# Sizes.


def test_bodies_beyond_the_limit_are_refused_unread(simulated_tape) -> None:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    size = 100 << 20

    def parts():
        block = b"a" * 65536
        for _ in range(size // 65536):
            yield block

    headers = {"content-type": "application/json"}
    chunked = simulated_tape.client.post("/v1/completions", content=parts(), headers=headers)
    refused(chunked, 413, code="request_too_large")
    announced = simulated_tape.client.post(
        "/v1/completions", content=parts(), headers={**headers, "content-length": str(size)}
    )
    refused(announced, 413, code="request_too_large")
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 40 << 10  # KiB
    assert text_of(events(complete(simulated_tape, tape("ok"), stream=True))) == "ok"


def test_a_body_that_never_ends_is_given_up() -> None:
    with simulated("tape", body_timeout_s=0.2) as server:
        url = httpx.URL(server.url)
        with socket.create_connection((url.host, url.port), timeout=5) as sock:
            sock.sendall(HEAD % b"/generate" + b"{")
            assert sock.recv(65536).split(b" ")[1] == b"408"


def raw(server, data: bytes) -> bytes:
    """Sends bytes and reads until the server closes."""
    url = httpx.URL(server.url)
    with socket.create_connection((url.host, url.port), timeout=5) as sock:
        answer = b""
        try:
            for start in range(0, len(data), 16384):
                sock.sendall(data[start : start + 16384])
            while chunk := sock.recv(65536):
                answer += chunk
        except ConnectionError:
            pass  # closed while we were still sending; what came before counts
        return answer


HEADS = {
    "one long header": b"x: " + b"a" * (MAX_HEAD_BYTES + 1) + b"\r\n",
    "endless header": b"x: " + b"a" * (1 << 20),
    "many headers": b"".join(b"x%d: y\r\n" % i for i in range(MAX_HEADERS + 1)),
    "10,000 headers": b"x: y\r\n" * 10_000,
}


@pytest.mark.parametrize("name", HEADS)
def test_heads_beyond_the_limits(tape_server, name) -> None:
    answer = raw(tape_server, b"GET /health HTTP/1.1\r\nHost: x\r\n" + HEADS[name] + b"\r\n")
    assert answer == b"" or answer.startswith(b"HTTP/1.1 431 ")
    assert tape_server.client.get("/health").status_code == 200


def test_a_long_path_is_refused_the_same_way(tape_server) -> None:
    answer = raw(tape_server, b"GET /" + b"a" * (MAX_HEAD_BYTES + 1) + b" HTTP/1.1\r\nHost: x\r\n\r\n")
    assert answer == b"" or answer.startswith(b"HTTP/1.1 431 ")


def test_noise_gets_an_error_in_our_shape(tape_server) -> None:
    answer = raw(tape_server, b"\x16\x03\x01 not HTTP\r\n\r\n")
    assert answer.startswith(b"HTTP/1.1 400 ")
    assert json.loads(answer.split(b"\r\n\r\n")[1])["error"]["code"] == "invalid_http"


def test_a_body_in_tiny_chunks(tape_server) -> None:
    body = json.dumps({"prompt": tape("ok" + " " * 20_000), "max_tokens": 2, "temperature": 0}).encode()
    chunks = b"".join(b"1\r\n%b\r\n" % body[i : i + 1] for i in range(len(body))) + b"0\r\n\r\n"
    head = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
    answer = raw(tape_server, head + b"Transfer-Encoding: chunked\r\nConnection: close\r\n\r\n" + chunks)
    assert answer.startswith(b"HTTP/1.1 ")
    assert answer.split(b" ")[1] == b"200" or b"context_length_exceeded" in answer


def test_metrics_count_a_request_once(tape_server) -> None:
    def scrape(name: str) -> float:
        lines = tape_server.client.get("/metrics").text.splitlines()
        return sum(float(line.rsplit(" ", 1)[1]) for line in lines if line.startswith(f"corymb_{name}{{"))

    before = scrape("requests_total"), scrape("generation_tokens_total")
    usage = chat(tape_server, tape("hi"), n=3).json()["usage"]
    assert scrape("requests_total") - before[0] == 1
    assert scrape("generation_tokens_total") - before[1] == usage["completion_tokens"] == 9
    refused(chat(tape_server, tape("hi"), n=0), 400)
    assert scrape("requests_total") - before[0] == 1


def test_who_is_served(tape_server) -> None:
    models = tape_server.client.get("/v1/models").json()
    assert [model["id"] for model in models["data"]] == ["tape", "corymb/tape"]
    assert models["data"][0]["max_model_len"] == 1 << 17
    assert tape_server.client.get("/v1/models/corymb/tape").json()["id"] == "corymb/tape"
    for path in ("/model_info", "/get_model_info"):
        assert tape_server.client.get(path).json()["vocab_size"] == 264
    for path in ("/server_info", "/get_server_info"):
        assert tape_server.client.get(path).json()["max_total_num_tokens"] >= 65536


def test_a_tokenizer_from_elsewhere_is_told(simulated_tape) -> None:
    for path in ("/model_info", "/server_info"):
        info = simulated_tape.client.get(path).json()
        assert (info["model_path"], info["tokenizer_path"]) == ("corymb/tape", "tokens")


def test_server_info_holds_no_keys() -> None:
    with simulated("tape", api_key="sekrit", headers={"x-api-key": "sekrit"}) as server:
        assert "sekrit" not in server.client.get("/server_info").text


def test_native_answers_have_an_id_when_the_client_gave_none(tape_server) -> None:
    ids = {native(tape_server, tape("a")).json()["meta_info"]["id"] for _ in range(3)}
    assert len(ids) == 3


def test_a_fault_of_ours_is_an_answer_without_details(monkeypatch) -> None:
    with simulated("tape") as server:
        monkeypatch.setattr(server.simulator, "send", lambda message: 1 / 0)
        for stream in (False, True):
            error = refused(complete(server, "a", stream=stream), 500, code="internal_error")
            assert "division" not in error["message"]
        assert server.client.get("/health").status_code == 200
