"""llm-comply, which checks a server against the published specifications of three APIs."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

# What this server does otherwise, and says so in its documents.
OURS = {
    "Image Input": "it takes text only",
    "Error Handling": "`model` may be left out",
}
LEAST = {"openai-chat": 6, "open-responses": 9, "anthropic": 7}


@pytest.mark.parametrize("form", LEAST)
def test_answers_follow_the_specification(scripted, form) -> None:
    command = [Path(sys.executable).with_name("llm-comply"), "-u", f"{scripted.url}/v1", "-k", "none", "-m", "tape"]
    ended = subprocess.run(
        [*command, "--format", form, "--json", "--timeout", "20"], capture_output=True, text=True, check=False
    )
    results = json.loads(ended.stdout)["results"]
    failed = {result["name"]: result["errors"] for result in results if result["status"] == "failed"}
    assert {name: errors for name, errors in failed.items() if name not in OURS} == {}
    assert sum(result["status"] == "passed" for result in results) >= LEAST[form]
