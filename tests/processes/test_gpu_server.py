"""A whole server on the GPU's runner, its kernels under Triton's interpreter."""

import importlib.util
import json

import pytest

pytestmark = [
    pytest.mark.server,
    pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="Triton is not installed"),
]

INTERPRETED = {"TRITON_INTERPRET": "1"}
SHAPE = {
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 1,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 300,
    "max_position_embeddings": 128,
    "rms_norm_eps": 1e-5,
    "hidden_act": "silu",
    "eos_token_id": 2,
}


def complete(server, prompt, **more):
    body = {"model": "default", "prompt": prompt, "max_tokens": 12, "temperature": 0, "ignore_eos": True} | more
    answer = server.client.post("/v1/completions", json=body)
    assert answer.status_code == 200, answer.text
    return answer.json()


def test_model_hash_reads_the_gpus_own_pages(serving):
    with serving("corymb/hash", "--device", "cuda", "--served-model-name", "default", env=INTERPRETED) as server:
        info = server.client.get("/get_server_info").json()
        cold, warm = complete(server, "a prompt for the hash"), complete(server, "a prompt for the hash")
    assert info["device"] == "cuda"
    assert warm["usage"]["prompt_tokens_details"]["cached_tokens"] > 0
    assert cold["choices"][0]["text"] == warm["choices"][0]["text"] == hashed("a prompt for the hash", 12)


def hashed(prompt, count):
    token_ids = list(prompt.encode())
    for _ in range(count):
        total = sum((i + 1) * (token * 40503 % 65521) for i, token in enumerate(token_ids)) % 65521
        token_ids.append(97 + (total >> 5) % 26)
    return bytes(token_ids[len(prompt) :]).decode()


def test_shape_without_weights_is_served_with_graphs_and_eight_bit_keys(serving, tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(SHAPE))
    (tmp_path / "tokenizer_config.json").write_text('{"tokenizer_class": "CorymbBytes"}')
    flags = (
        *(
            "--load-format",
            "dummy",
            "--device",
            "cuda",
            "--kv-cache-dtype",
            "fp8_e4m3",
            "--served-model-name",
            "default",
        ),
        *("--max-running-requests", "2", "--chunked-prefill-size", "32", "--max-total-tokens", "512"),
        *("--attention-backend", "triton", "--random-seed", "3"),
    )
    with serving(str(tmp_path), *flags, env=INTERPRETED) as server:
        lines = {line.split()[0]: line for line in server.log.split("\n  ready")[0].splitlines()}
        usage = complete(server, "words " * 9, max_tokens=3)["usage"]
        random = complete(server, "words", max_tokens=3, temperature=1)["usage"]
    assert list(lines)[-5:] == ["weights", "pools", "graphs", "warm-up", "scheduler"]
    assert "float8_e4m3fn" in lines["pools"]
    assert "prefill triton, decode triton, graphs up to 2" in lines["graphs"]
    assert (usage["prompt_tokens"], usage["completion_tokens"], random["completion_tokens"]) == (54, 3, 3)
