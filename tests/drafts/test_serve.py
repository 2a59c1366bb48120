"""A draft that `corymb draft` made serves: the same greedy answers as without it."""

import re
import shutil
from pathlib import Path

import pytest

from corymb.serve import draft_command

pytestmark = pytest.mark.server

SERVED = ("--device", "cpu", "--dtype", "float32", "--max-total-tokens", "4096")
PROMPTS = ["Count from 3 to 15.", "Write a poem about figs.", "What is 24 + 8?"]


def test_a_trained_and_calibrated_draft_answers_as_plain_decoding_does(
    target: Path, trained: Path, serving, tmp_path: Path
) -> None:
    draft = tmp_path / "draft"
    shutil.copytree(trained, draft, ignore=shutil.ignore_patterns("work"))
    few = ["--device", "cpu", "--num-prompts", "8", "--max-answer-tokens", "16", "--temperatures", "0.7"]
    assert draft_command.run(["calibrate", str(target), "--draft", str(draft), *few]) == 0
    drafting = ("--speculative-algorithm", "DSPARK", "--speculative-draft-model-path", str(draft))
    drafting += ("--speculative-dspark-confidence-sts-path", str(draft / "sts.json"))
    drafting += ("--speculative-dspark-verify-mode", "static")  # verifies whether or not that pays on this machine
    answers = []
    for flags in ((), drafting):
        with serving(str(target), *SERVED, *flags) as server:
            answers.append([ask(server, prompt) for prompt in PROMPTS])
            metrics = server.client.get("/metrics").text
    assert answers[0] == answers[1]
    verified = re.findall(r"^corymb_drafts_verified_total\{.*\} (\d+)", metrics, re.MULTILINE)
    assert sum(map(int, verified)) > 30


def ask(server, prompt: str) -> str:
    model = server.client.get("/v1/models").json()["data"][0]["id"]
    body = {"model": model, "messages": [{"role": "user", "content": prompt}], "max_tokens": 24, "temperature": 0}
    return server.client.post("/v1/chat/completions", json=body).json()["choices"][0]["message"]["content"]
