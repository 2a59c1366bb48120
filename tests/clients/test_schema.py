"""Schemathesis against our own OpenAPI document, with every check it has. `make fuzz` runs it for longer."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
EXAMPLES = int(os.environ.get("SCHEMA_EXAMPLES", "15"))  # drawn for each operation, besides its boundary values
# Other names of routes that are tried, and one with the body of another: `make fuzz` tries these, too.
ALIASES = (
    "/v1/responses/input_tokens",
    "/v1/tokenize",
    "/v1/detokenize",
    "/get_model_info",
    "/get_server_info",
    "/get_load",
    "/ping",
)
STOPPING = ("/pause_generation", "/start_profile")  # then others would wait, or a trace be written
LEFT_OUT = STOPPING if "SCHEMA_CALLS" in os.environ else (*STOPPING, *ALIASES)
LEAST_CALLS = int(os.environ.get("SCHEMA_CALLS", "1500"))


@pytest.fixture(scope="module")
def locked(serving):
    keys = ("--api-key", "user-key", "--admin-api-key", "admin-key")
    parsers = ("--reasoning-parser", "qwen3", "--tool-call-parser", "qwen")
    with serving("corymb/tape", *keys, *parsers, key="admin-key") as server:
        yield server


def run(server, report: Path) -> subprocess.CompletedProcess[str]:
    options = ["--continue-on-failure", "--phases", "coverage,fuzzing", "--seed", "20", "--no-color"]
    options += [part for path in LEFT_OUT for part in ("--exclude-path", path)]
    options += ["--max-examples", str(EXAMPLES), "--report", "json", "--report-json-path", str(report)]
    return subprocess.run(
        [Path(sys.executable).with_name("schemathesis"), "run", f"{server.url}/openapi.json", *options,
         "-H", "Authorization: Bearer admin-key"],
        capture_output=True, text=True, check=False, cwd=HERE,
        env={**os.environ, "SCHEMATHESIS_HOOKS": "schema_hooks", "PYTHONPATH": str(HERE)},
    )  # fmt: skip


def test_every_answer_is_as_the_document_says_and_none_is_a_fault(locked, tmp_path) -> None:
    children = {name: child.pid for name, child in locked.children.items()}
    ended = run(locked, tmp_path / "report.json")
    assert ended.returncode == 0, ended.stdout[-20_000:] + ended.stderr[-2_000:]
    calls = int(re.search(r"(\d+) generated", ended.stdout)[1])
    assert calls >= LEAST_CALLS
    paths = json.loads(locked.client.get("/openapi.json").text)["paths"]
    told = [method for path, item in paths.items() if path not in LEFT_OUT for method in item if method != "parameters"]
    assert f"Tested: {len(told)}" in ended.stdout
    assert {name: child.pid for name, child in locked.children.items()} == children
    assert "Traceback" not in locked.log
    assert locked.client.post("/flush_cache").json()["success"] is True
