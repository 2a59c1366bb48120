"""Whole servers on the models with windows and states: many clients at once, some of whom go away."""

import random
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
WINDOW = 32
NUM_TOKENS = 24
LITTLE = ("--max-total-tokens", "1400")
HALF = ("--swa-full-tokens-ratio", "0.5")
STATES = ("--max-mamba-cache-size", "11", "--mamba-track-interval", "16")
DRAFTS = ("--speculative-algorithm", "NGRAM")
HOST = ("--enable-hierarchical-cache", "--hicache-write-policy", "write_back")
FLAGS = {
    "hash-sliding": (*LITTLE, *HALF, "--page-size", "4", "--chunked-prefill-size", "32", "--enable-mixed-chunk"),
    "hash-recurrent+drafts": (*LITTLE, *STATES, *DRAFTS, "--disable-overlap-schedule"),
    "hash-hybrid+drafts+host": (
        *LITTLE,
        *HALF,
        *STATES,
        *DRAFTS,
        *HOST,
        "--speculative-dspark-verify-mode",
        "static",
    ),
    "hash-hybrid": (*LITTLE, *HALF, *STATES, "--chunked-prefill-size", "48"),
}


@pytest.fixture(scope="module", params=FLAGS)
def server(serving, request):
    model = request.param.partition("+")[0]
    with serving(f"corymb/{model}", "--max-running-requests", "8", *FLAGS[request.param]) as server:
        server.model, server.has_host = model, "+host" in request.param
        yield server


def says(prompt, num_tokens, model):
    """What the model says, in plain Python."""
    token_ids, state = list(prompt), 0
    kept = []
    for position in range(len(prompt) + num_tokens):
        if position == len(token_ids):
            window = sum(kept[-WINDOW:]) if model != "hash-recurrent" else 0
            total = sum(kept) + window + (state if model != "hash-sliding" else 0)
            token_ids.append(97 + (total % 65521 >> 5) % 26)
        stored = token_ids[position] * 40503 % 65521
        kept.append((position + 1) * stored)
        state = (31 * state + stored) % 65521
    return bytes(token_ids[len(prompt) :]).decode()


def talk(server, serial):
    """A conversation of three turns, each checked."""
    prompt = "be brief and kind, " * (1 + serial % 3) + f"question {serial}: "
    for turn in range(3):
        body = {"prompt": prompt, "max_tokens": NUM_TOKENS, "temperature": 0}
        answer = server.client.post("/v1/completions", json=body).json()["choices"][0]["text"]
        assert answer == says(prompt.encode(), NUM_TOKENS, server.model)
        prompt += answer + f" and {turn}? "


def leave(server, serial):
    """Asks for much and goes after a piece of it."""
    body = {"prompt": "be brief and kind, " * 2 + f"{serial} ", "max_tokens": 400, "stream": True, "ignore_eos": True}
    with server.client.stream("POST", "/v1/completions", json=body) as response:
        for _, line in zip(range(random.Random(serial).randint(1, 60)), response.iter_lines(), strict=False):
            assert line == "" or line.startswith("data: ")


def metric(server, name):
    """Values by pool or component."""
    samples = re.findall(rf"^{name}{{(.*)}} (\S+)$", server.client.get("/metrics").text, re.MULTILINE)
    return {re.search(r'(?:component|pool)="(\w+)"', labels)[1]: float(value) for labels, value in samples}


def test_conversations_are_exact_while_others_come_and_go(server):
    with ThreadPoolExecutor(12) as pool:
        talks = [pool.submit(talk, server, serial) for serial in range(16)]
        leavers = [pool.submit(leave, server, serial) for serial in range(16)]
        for done in talks + leavers:
            done.result()
    names = ["full", *(["sliding"] if server.model != "hash-recurrent" else [])]
    names += ["recurrent"] if server.model != "hash-sliding" else []
    # When nobody asks, nothing is held: what each pool lacks is in the tree and may go.
    server.wait_for(lambda: set(metric(server, "corymb_pool_used_tokens").values()) == {0.0}, 10)
    assert list(metric(server, "corymb_pool_used_tokens")) == names
    assert metric(server, "corymb_tree_protected_tokens") == dict.fromkeys(names, 0.0)
    assert metric(server, "corymb_tree_evictable_tokens") == metric(server, "corymb_pool_evictable_tokens")
    assert metric(server, "corymb_tree_hit_tokens_total")["full"] > 0
    assert (metric(server, "corymb_host_used_tokens").get("full", 0.0) > 0) == server.has_host
    assert (metric(server, "corymb_host_stored_tokens_total")["full"] > 0) == server.has_host


def test_the_tree_can_be_looked_at(server, tmp_path):
    talk(server, 100)
    server.wait_for(lambda: set(metric(server, "corymb_pool_used_tokens").values()) == {0.0}, 10)
    tree = server.client.get("/debug/tree?max_nodes=10000").json()
    assert tree["truncated"] is False
    assert len(tree["nodes"]) == tree["num_nodes"] + 1
    assert (
        f"}} {tree['num_nodes']}.0"
        in re.search("^corymb_tree_nodes.*", server.client.get("/metrics").text, re.MULTILINE)[0]
    )
    seen = {None}
    for node in tree["nodes"]:
        assert node["parent"] in seen, "parents come first"
        seen.add(node["id"])
    held = {
        name: sum(node["components"].get(name, 0) for node in tree["nodes"])
        for name in metric(server, "corymb_tree_used_tokens")
    }
    assert held == metric(server, "corymb_tree_used_tokens")
    assert (tree["host"] is not None) == server.has_host
    if server.has_host:
        on_host = sum(node["components"].get("full", 0) for node in tree["host"]["nodes"])
        assert on_host == metric(server, "corymb_host_used_tokens")["full"]
        assert {node["tier"] for node in tree["host"]["nodes"]} == {"host"}
    few = server.client.get("/debug/tree?max_nodes=3").json()
    assert (len(few["nodes"]), few["truncated"]) == (4, True)
    draw = [sys.executable, str(ROOT / "benchmarks/draw_tree.py"), server.url, str(tmp_path / "tree.svg")]
    subprocess.run(draw, check=True, capture_output=True)
    assert (tmp_path / "tree.svg").read_text().count("<g>") == len(tree["nodes"])


@pytest.mark.parametrize("given", ["0", "10001", "-1", "many", "1e3", "", "99999999999999999999"])
def test_an_unbounded_picture_is_refused(server, given):
    answer = server.client.get(f"/debug/tree?max_nodes={given}")
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == "max_nodes"
