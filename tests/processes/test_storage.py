"""Whole servers, one after another, over one folder of files."""

import re

NUM_PREFIX = 8000
NUM_TOKENS = 16
BLOCK_TOKENS = 256
PROMPT = ("a beginning that many questions share, " * 220)[:NUM_PREFIX]
FLAGS = ("--enable-hierarchical-cache", "--max-total-tokens", "20000", "--chunked-prefill-size", "2048")


def flags(folder):
    return *FLAGS, "--hicache-storage-backend", "file", "--hicache-storage-dir", str(folder)


def says(prompt, num_tokens):
    """What corymb/hash says, in plain Python."""
    token_ids = list(prompt.encode())
    total = sum((i + 1) * (token * 40503 % 65521) for i, token in enumerate(token_ids))
    for _ in range(num_tokens):
        token_ids.append(97 + (total % 65521 >> 5) % 26)
        total += len(token_ids) * (token_ids[-1] * 40503 % 65521)
    return bytes(token_ids[len(prompt) :]).decode()


def ask(server, prompt, **options):
    """The answer, which is checked, and how many tokens of the prompt were cached."""
    body = {"prompt": prompt, "max_tokens": NUM_TOKENS, "temperature": 0} | options
    answer = server.client.post("/v1/completions", json=body).json()
    assert answer["choices"][0]["text"] == says(prompt, NUM_TOKENS)
    return answer["usage"]["prompt_tokens_details"]["cached_tokens"]


def metric(server, name, **labels):
    wanted = "".join(f'.*{key}="{value}"' for key, value in labels.items())
    exposed = server.client.get("/metrics").text
    return float(re.search(rf"^corymb_{name}{{{wanted}.*}} (\S+)$", exposed, re.MULTILINE)[1])


def test_after_a_restart_the_first_request_hits(serving, tmp_path):
    with serving("corymb/hash", *flags(tmp_path / "files")) as server:
        assert ask(server, PROMPT) == 0
        # Nothing else is asked: what was computed gets to the disk all the same.
        least = (NUM_PREFIX // BLOCK_TOKENS) * BLOCK_TOKENS
        server.wait_for(lambda: metric(server, "storage_copied_bytes_total", direction="stored") >= least * 4, 20)
    with serving("corymb/hash", *flags(tmp_path / "files")) as server:
        assert ask(server, PROMPT + " what now?") == NUM_PREFIX - NUM_PREFIX % BLOCK_TOKENS
        assert metric(server, "storage_loaded_tokens_total", pool="full") == NUM_PREFIX - NUM_PREFIX % BLOCK_TOKENS
        assert ask(server, PROMPT, cache_salt="another tenant's") == 0
        assert metric(server, "storage_failures_total", direction="loaded") == 0
