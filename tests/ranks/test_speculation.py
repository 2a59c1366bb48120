"""Two ranks draft with the target's hidden states, embedding and head as one does.

What they say is what one rank says that does not draft; what they think of their drafts is what one thinks.
"""

import json
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "runner"))

import random_drafts

pytestmark = [pytest.mark.server, pytest.mark.timeout(1500)]

NUM_TOKENS = 24
SCHEMA = {"type": "object", "properties": {"a": {"type": "string", "maxLength": 6}}, "required": ["a"]}
SETTINGS = [
    {"temperature": 0},
    {"temperature": 0, "repetition_penalty": 1.3, "logit_bias": {"65": 1.5}},
    {"temperature": 0.9, "top_p": 0.8, "sampling_seed": 5},
    {"temperature": 0, "min_new_tokens": 4, "stop_token_ids": [70, 71]},
    {"temperature": 0, "json_schema": json.dumps(SCHEMA), "ignore_eos": False},
]


def ask(server, prompt: bytes, settings: dict[str, object]) -> dict:
    sampling = {"max_new_tokens": NUM_TOKENS, "ignore_eos": True} | settings
    body = {"input_ids": list(prompt), "sampling_params": sampling, "return_logprob": True}
    response = server.client.post("/generate", json=body, timeout=280)  # grammars import much
    assert response.status_code == 200, response.text
    return response.json()


def said(server) -> list[list[int]]:
    """Output ids of every prompt with all settings, one after another, and all at once beside rows that draw freely."""
    begin = b"the cat and the dog and the c"
    wanted = [(begin[:length], settings) for length in (9, 29) for settings in SETTINGS]
    alone = [ask(server, *one)["output_ids"] for one in wanted]
    with ThreadPoolExecutor(8) as pool:
        free = [pool.submit(ask, server, begin[:length], {"temperature": 1.0}) for length in (3, 12)]
        together = list(pool.map(lambda one: ask(server, *one)["output_ids"], wanted))
        assert all(len(each.result()["output_ids"]) == NUM_TOKENS for each in free)
    assert together == alone
    return alone


def test_two_ranks_draft_as_one_does(serving, tiny, tmp_path: Path) -> None:
    exact = (tiny("drafted"), "--dtype", "float32")
    draft = random_drafts.write(tmp_path / "draft", random_drafts.deepspec(), random_drafts.tensors())
    with serving(*exact, "--disable-radix-cache", "--disable-overlap-schedule") as server:
        one = said(server)
    drafting = ("--speculative-algorithm", "DSPARK", "--speculative-draft-model-path", str(draft))
    whole = ("--speculative-dspark-verify-mode", "static")
    answers, thoughts = [], []
    for size, flags in ((1, ()), (2, ("--tp-size", "2", "--check-plans", "--chunked-prefill-size", "7"))):
        trace = tmp_path / f"trace-{size}"
        with serving(*exact, *drafting, *whole, "--speculative-trace", str(trace), *flags) as server:
            answers.append(ask(server, b"the cat", {"temperature": 0}))
            if size == 2:
                assert said(server) == one
        steps = [json.loads(line) for line in trace.read_text().splitlines()]
        thoughts.append([step["confidence"] for step in steps if "confidence" in step])
    assert answers[0]["output_ids"] == answers[1]["output_ids"]
    chances = [[chance for chance, *_ in each["meta_info"]["output_token_logprobs"]] for each in answers]
    np.testing.assert_allclose(*chances, atol=1e-4)
    first = thoughts[0][: answers[0]["meta_info"]["spec_verify_ct"]]
    assert len(first) > 5
    np.testing.assert_allclose(np.concatenate(first), np.concatenate(thoughts[1][: len(first)]), atol=1e-3)
