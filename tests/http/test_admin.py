"""What operators order: pauses and recordings."""

import gzip
import json
import threading
import time

import pytest

from tests.http.client import complete, post, refused
from tests.http.conftest import simulated
from tests.http.simulator import Simulator

ENDLESS = {"ignore_eos": True, "max_tokens": 8000}


def orders(server) -> list[tuple[str, int]]:
    return [(order.action, order.num_steps) for order in server.simulator.ordered]


@pytest.mark.parametrize(("mode", "action"), [("abort", "pause"), ("in_place", "pause"), ("retract", "retract")])
def test_modes_of_a_pause(mode, action) -> None:
    with simulated(simulator=Simulator("tape", step_s=0.002)) as server:
        results: list = []
        asking = threading.Thread(target=lambda: results.append(complete(server, "a", **ENDLESS)))
        asking.start()
        while not server.simulator.running:
            time.sleep(0.002)
        answer = post(server, "/pause_generation", {"mode": mode}).json()
        assert (answer["success"], answer["num_aborted"]) == (True, 1 if mode == "abort" else 0)
        assert orders(server) == [(action, 0)]
        assert server.client.get("/server_info").json()["is_paused"] is True
        assert server.client.get("/v1/loads").json()["loads"][0]["is_paused"] is True
        assert post(server, "/continue_generation", {}).json()["success"] is True
        assert server.client.get("/server_info").json()["is_paused"] is False
        post(server, "/abort_request", {"abort_all": True})
        asking.join(5)
        assert results[0].json()["choices"][0]["finish_reason"] == "abort"


def test_without_a_body_a_pause_aborts() -> None:
    with simulated("tape") as server:
        assert server.client.post("/pause_generation").json()["success"] is True
        refused(post(server, "/pause_generation", {"mode": "gently"}), 400, param="mode")


def test_recordings_are_bounded_and_go_where_the_server_says() -> None:
    with simulated("tape") as server:
        assert server.client.post("/start_profile").json()["success"] is True
        assert post(server, "/start_profile", {"num_steps": 7, "activities": ["CPU"]}).status_code == 200
        assert orders(server) == [("start_profile", 100), ("start_profile", 7)]
        refused(post(server, "/start_profile", {"num_steps": 1001}), 400, param="num_steps")
        refused(post(server, "/start_profile", {"output_dir": "/etc"}), 400, param="output_dir")
        refused(server.client.post("/stop_profile"), 409, code="order_refused")


def test_a_busy_scheduler_is_told_of() -> None:
    with simulated("tape", flush_timeout_s=0.1) as server:
        server.simulator.paused = True
        for path in ("/pause_generation", "/continue_generation", "/start_profile", "/stop_profile"):
            refused(server.client.post(path), 409, code="scheduler_busy")


def test_what_an_order_does_not_read_is_named() -> None:
    with simulated("tape") as server:
        for path in ("/flush_cache?timeout=1&when=now", "/continue_generation?when=now"):
            assert server.client.post(path).headers["x-ignored-fields"] == "when"
            assert post(server, path, {"empty": True}).headers["x-ignored-fields"] == "empty, when"
        refused(server.client.post("/flush_cache?timeout=1&timeout=2"), 400, param="timeout")
        assert server.client.get("/v1/models?limit=5").headers["x-ignored-fields"] == "limit"


@pytest.fixture(scope="module")
def server(serving, tmp_path_factory):
    folder = tmp_path_factory.mktemp("cache")
    with serving("corymb/hash", "--cache-dir", str(folder), "--served-model-name", "one,two") as server:
        server.cache = folder
        yield server


def long_answer(server, on_first) -> str:
    """A streamed text of 800 tokens; tells when the first has come."""
    body = {"prompt": "ab", "max_tokens": 800, "temperature": 0, "ignore_eos": True, "stream": True}
    text = ""
    with server.client.stream("POST", "/v1/completions", json=body) as response:
        for line in response.iter_lines():
            if line.startswith("data: {"):
                text += json.loads(line[6:])["choices"][0]["text"]
                on_first()
    return text


@pytest.mark.server
@pytest.mark.parametrize("mode", ["in_place", "retract"])
def test_a_paused_server_stands_still_and_goes_on_as_if_nothing_was(server, mode) -> None:
    expected = long_answer(server, lambda: None)
    results: list[str] = []
    begun = threading.Event()
    asking = threading.Thread(target=lambda: results.append(long_answer(server, begun.set)))
    later = threading.Thread(
        target=lambda: results.append(complete(server, "ba", max_tokens=4).json()["choices"][0]["text"])
    )
    asking.start()
    assert begun.wait(5)
    post(server, "/pause_generation", {"mode": mode})
    later.start()
    later.join(0.8)
    assert (asking.is_alive(), later.is_alive()) == (True, True)
    assert server.client.get("/health").status_code == 200
    if mode == "retract":
        assert server.client.post("/flush_cache").status_code == 200
    post(server, "/continue_generation", {})
    asking.join(20)
    later.join(20)
    assert sorted(results) == sorted([expected, "uzrs"])


@pytest.mark.server
def test_a_recording_shows_the_steps(server) -> None:
    assert post(server, "/start_profile", {"num_steps": 1000}).status_code == 200
    refused(server.client.post("/start_profile"), 409, code="order_refused")
    assert complete(server, "ab", max_tokens=8).status_code == 200
    message = server.client.post("/stop_profile").json()["message"]
    refused(server.client.post("/stop_profile"), 409, code="order_refused")
    (path,) = (server.cache / "profiles").iterdir()
    assert str(path) in message
    names = {event.get("name", "") for event in json.loads(gzip.decompress(path.read_bytes()))["traceEvents"]}
    assert any(name.startswith("aten::") for name in names)


@pytest.mark.server
def test_a_recording_ends_by_itself(server) -> None:
    assert post(server, "/start_profile", {"num_steps": 2}).status_code == 200
    assert complete(server, "ab", max_tokens=8).status_code == 200
    refused(server.client.post("/stop_profile"), 409, code="order_refused")


@pytest.mark.server
def test_every_name_is_served(server) -> None:
    models = [model["id"] for model in server.client.get("/v1/models").json()["data"]]
    assert models == ["one", "two"]
    for name in models:
        assert complete(server, "ab", max_tokens=4, model=name).json()["model"] == name
        assert server.client.get(f"/v1/models/{name}").json()["id"] == name
    refused(complete(server, "ab", model="hash"), 404, code="model_not_found")


@pytest.mark.server
def test_loads(server) -> None:
    (load,) = server.client.get("/v1/loads").json()["loads"]
    assert load["max_total_num_tokens"] > 0
    assert load["num_total_reqs"] == load["num_running_reqs"] + load["num_waiting_reqs"]
    assert 0 <= load["token_usage"] <= 1
