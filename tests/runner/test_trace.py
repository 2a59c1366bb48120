"""Every step of a server that drafts leaves a line that says what came of it."""

import json
import logging
from pathlib import Path

import pytest
from by_loop import FakePort, serve
from drafting import Drafts, ScriptedDrafter
from test_exactness import generate, hashed, write_folder

from corymb.speculative.budget import Budgets
from corymb.speculative.cost_model import CostModel, envelope
from corymb.speculative.trace import Trace, Traced

PROMPTS = [b"one prompt", b"another one", b"three"]
NUM_TOKENS, NUM_DRAFTS, NUM_ROWS = 20, 4, 17


def budgets() -> Budgets:
    """Where drafts cost next to nothing."""
    flat = envelope([1, 64], [0.01, 0.011], farthest=NUM_ROWS * (1 + NUM_DRAFTS))
    return Budgets(NUM_DRAFTS, NUM_ROWS, CostModel(0.0, envelope([1, 16], [0.001, 0.002], farthest=NUM_ROWS), flat))


def run(folder: Path, trace: Trace) -> FakePort:
    policy = budgets()
    speculation = Drafts(
        lambda num_rows: ScriptedDrafter(lambda said, count: hashed(bytes(said), count, None), 4, num_rows=num_rows)
    )
    requests = [generate(str(index), prompt, NUM_TOKENS) for index, prompt in enumerate(PROMPTS)]
    windows = Traced(policy, trace, lambda: policy.last)
    port = serve(write_folder(folder, "CorymbHash", None), requests, {"speculation": speculation, "windows": windows})
    trace.close()
    return port


def test_lines_add_up_to_what_was_said(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    port = run(tmp_path, Trace(path))
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert [line["step"] for line in lines] == sorted({line["step"] for line in lines})
    said = sum(len(port.token_ids(str(index))) for index in range(len(PROMPTS)))
    # Each request's first token is its prompt's; what is behind its last was computed for nothing.
    told = sum(len(line["rows"]) + sum(line["accepted"]) for line in lines)
    assert said - len(PROMPTS) <= told <= said + len(PROMPTS) * 2 * (1 + NUM_DRAFTS)
    for line in lines:
        assert len(line["rows"]) == len(line["windows"]) == len(line["accepted"]) == len(line["most"])
        within = zip(line["accepted"], line["windows"], line["most"], strict=True)
        assert all(accepted <= window <= most for accepted, window, most in within)
        assert line["budget"] != 0 or not any(line["windows"])
        assert line["step_s"] > 0
    drafted = [line for line in lines if any(line["windows"])]
    assert drafted
    for line in drafted:
        assert line["foreseen_s"] > 0
        assert line["foreseen_tokens"] >= len(line["rows"])
        assert line["draft_s"] + line["verify_s"] == pytest.approx(line["step_s"], abs=1e-5)


def test_a_trace_that_is_full_ends_and_nothing_else(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "trace.jsonl"
    with caplog.at_level(logging.WARNING):
        port = run(tmp_path, Trace(path, most_bytes=600))
    for index, prompt in enumerate(PROMPTS):
        assert port.token_ids(str(index)) == hashed(prompt, NUM_TOKENS, None)
    lines = path.read_text().splitlines()
    assert 0 < len(path.read_bytes()) <= 600
    assert all(json.loads(line) for line in lines)
    assert [record.message for record in caplog.records if "trace" in record.message] == [
        f"The trace of speculation {path} ends here: it is full"
    ]
