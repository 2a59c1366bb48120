"""Embeddings over HTTP; what they are made of is tested with the runner."""

import base64
import json

import httpx
import numpy as np
import ollama
import openai
import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from transformers import LlamaConfig, LlamaForCausalLM

from corymb.models.toy_folders import write_byte_tokenizer
from tests.http.client import post, refused
from tests.http.conftest import simulated
from tests.http.simulator import embedding_of

SIZE = 4


@pytest.fixture(scope="module")
def server():
    with simulated("hash", hidden_size=SIZE) as server:
        yield server


def expected(text: str) -> np.ndarray:
    return np.frombuffer(embedding_of(list(text.encode())), "<f4")


def embed(server, given="ab", **fields) -> httpx.Response:
    return post(server, "/v1/embeddings", {"input": given, **fields})


def test_with_the_official_sdk(server) -> None:
    client = openai.OpenAI(base_url=f"{server.url}/v1", api_key="none")
    answer = client.embeddings.create(model="hash", input=["ab", "xyz"])
    assert [item.index for item in answer.data] == [0, 1]
    np.testing.assert_array_equal([item.embedding for item in answer.data], [expected("ab"), expected("xyz")])
    assert answer.usage.prompt_tokens == answer.usage.total_tokens == 5


def test_both_formats_hold_the_same(server) -> None:
    floats = embed(server).json()["data"][0]["embedding"]
    coded = embed(server, encoding_format="base64").json()["data"][0]["embedding"]
    np.testing.assert_array_equal(np.frombuffer(base64.b64decode(coded), "<f4"), np.array(floats, "<f4"))


@pytest.mark.parametrize("given", ["ab", [97, 98], ["ab"], [[97, 98]]], ids=str)
def test_forms_of_input(server, given) -> None:
    (item,) = embed(server, given).json()["data"]
    np.testing.assert_array_equal(np.array(item["embedding"], "<f4"), expected("ab"))


def test_fewer_dimensions_are_the_first_ones_with_length_1(server) -> None:
    vector = np.array(embed(server, dimensions=2).json()["data"][0]["embedding"])
    first = expected("ab")[:2]
    np.testing.assert_allclose(vector, first / np.linalg.norm(first), rtol=1e-6)


def test_many_texts(server) -> None:
    data = embed(server, [str(n) for n in range(500)]).json()["data"]
    assert [item["index"] for item in data] == list(range(500))
    np.testing.assert_array_equal(np.array(data[321]["embedding"], "<f4"), expected("321"))


def test_with_ollamas_client(server) -> None:
    answer = ollama.Client(host=server.url).embed(model="hash:latest", input=["ab", "xyz"])
    np.testing.assert_array_equal(np.array(answer.embeddings, "<f4"), [expected("ab"), expected("xyz")])
    assert (answer.prompt_eval_count, answer.model) == (5, "hash:latest")
    assert answer.total_duration > 0


@pytest.mark.server
def test_a_whole_server_gives_what_transformers_computes(serving, tmp_path) -> None:
    torch.manual_seed(1)
    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
    model = LlamaForCausalLM(LlamaConfig(vocab_size=264, max_position_embeddings=256, eos_token_id=257, **sizes))
    model.save_pretrained(tmp_path)
    write_byte_tokenizer(tmp_path)
    with torch.inference_mode():
        state = model.model(torch.tensor([list(b"ab")])).last_hidden_state[0, -1]
    with serving(str(tmp_path), "--dtype", "float32", "--max-total-tokens", "1024") as server:
        for _ in range(2):
            vector = embed(server).json()["data"][0]["embedding"]
            np.testing.assert_allclose(vector, F.normalize(state, dim=0).numpy(), atol=2e-6)
        assert post(server, "/v1/completions", {"prompt": "ab", "max_tokens": 2}).status_code == 200


REFUSED = [
    ({"input": None}, "input"),
    ({"input": ""}, "input"),
    ({"input": []}, "input"),
    ({"input": 5}, "input"),
    ({"input": ["a", 5]}, "input"),
    ({"input": ["a"] * 4097}, "input"),
    ({"input": [264]}, "input"),
    ({"input": "a" * (1 << 17)}, "input"),
    ({"dimensions": 0}, "dimensions"),
    ({"dimensions": SIZE + 1}, "dimensions"),
    ({"encoding_format": "hex"}, "encoding_format"),
    ({"encoding_format": ["float"]}, "encoding_format"),
]


@pytest.mark.parametrize(("fields", "param"), REFUSED, ids=lambda value: json.dumps(value)[:50])
def test_requests_that_are_refused(server, fields, param) -> None:
    assert refused(embed(server, **{"given": "a", **fields}), 400)["param"] in (param, "prompt")


def test_a_model_without_hidden_states_is_named(tape_server) -> None:
    error = refused(embed(tape_server), 400, code="unsupported_by_model", param="model")
    assert "'tape'" in error["message"]
    response = post(tape_server, "/api/embed", {"input": "a"})
    assert (response.status_code, "hidden states" in response.json()["error"]) == (400, True)


def test_no_model_here_classifies(tape_server) -> None:
    error = refused(post(tape_server, "/v1/classify", {"input": "a"}), 400, code="unsupported_by_model")
    assert "/v1/decisions" in error["message"]
    refused(post(tape_server, "/v1/classify", {"input": "a", "model": "nope"}), 404, code="model_not_found")


def test_a_client_that_leaves_ends_its_requests() -> None:
    with simulated("hash", hidden_size=SIZE) as server:
        server.simulator.paused = True
        with pytest.raises(httpx.ReadTimeout):
            server.client.post("/v1/embeddings", json={"input": ["a", "b"]}, timeout=0.2)
        server.wait_idle(1.0)
        assert server.engine.num_open == 0
