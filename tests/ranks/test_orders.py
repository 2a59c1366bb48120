"""Two ranks embed as one does, and pause, go on and record together."""

import json
import threading

import numpy as np
import pytest

pytestmark = [pytest.mark.server, pytest.mark.timeout(300)]

TEXTS = ["a", "abc", "some longer text than the chunk", "some longer text"]
EXACT = ("--dtype", "float32")


def embed(server) -> np.ndarray:
    response = server.client.post("/v1/embeddings", json={"input": TEXTS})
    assert response.status_code == 200, response.text
    return np.array([item["embedding"] for item in response.json()["data"]])


def streamed(server, begun: threading.Event) -> str:
    body = {"prompt": "ab", "max_tokens": 60, "temperature": 0, "ignore_eos": True, "stream": True}
    text = ""
    with server.client.stream("POST", "/v1/completions", json=body) as response:
        for line in response.iter_lines():
            if line.startswith("data: {"):
                text += json.loads(line[6:])["choices"][0]["text"]
                begun.set()
    return text


def test_two_ranks_follow_orders_together(tiny, serving) -> None:
    with serving(tiny("llama"), *EXACT) as server:
        expected = embed(server)
    flags = ["--tp-size", "2", "--check-plans", "--chunked-prefill-size", "7"]
    with serving(tiny("llama"), *EXACT, *flags) as server:
        np.testing.assert_allclose(embed(server), expected, atol=1e-5)
        plain = streamed(server, threading.Event())
        assert server.client.post("/start_profile", json={"num_steps": 500}).status_code == 200
        for mode in ("in_place", "retract"):
            begun, texts = threading.Event(), []
            asking = threading.Thread(target=lambda begun=begun, texts=texts: texts.append(streamed(server, begun)))
            asking.start()
            assert begun.wait(20)
            assert server.client.post("/pause_generation", json={"mode": mode}).json()["success"]
            assert server.client.get("/health").status_code == 200
            assert server.client.post("/continue_generation").json()["success"]
            asking.join(30)
            assert texts == [plain]
        assert "Recorded to" in server.client.post("/stop_profile").json()["message"]
        np.testing.assert_allclose(embed(server), expected, atol=1e-5)
