"""What the documents name exists."""

import re
from pathlib import Path

import pytest

from corymb.serve.draft_flags import COMMANDS, draft_parser
from corymb.serve.flags import REFUSED, parser
from corymb.serve.metrics import Metrics

ROOT = Path(__file__).parents[1]
DOCUMENTS = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").glob("*.md"))]
OTHERS_FLAGS = {"--merge", "--no-deps", "--only-binary", "--python-version", "--implementation", "--platform"}


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.name)
def test_links_lead_somewhere(path: Path) -> None:
    targets = re.findall(r"\]\(([^)#]+)", path.read_text())
    local = [target for target in targets if "://" not in target]
    assert [target for target in local if not (path.parent / target).exists()] == []


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.name)
def test_flags_exist(path: Path) -> None:
    flags = parser("serve").format_help() + " ".join(REFUSED)
    flags += "".join("\n" + draft_parser(command).format_help() for command in COMMANDS)
    named = set(re.findall(r"(?<![\w-])--[a-z][a-z0-9-]+", path.read_text())) - OTHERS_FLAGS
    assert {name for name in named if not re.search(rf"{name}(?![a-z0-9-])", flags)} == set()


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.name)
def test_files_and_targets_that_are_named_in_passing_exist(path: Path) -> None:
    told = re.findall(r"`([^`\n]+)`", path.read_text())
    files = {name for text in told for name in re.findall(r"\b(?:benchmarks|docker|docs|tests)/[\w./-]*\w", text)}
    assert {name for name in files if not (ROOT / name).exists()} == set()
    targets = {name for text in told for name in re.findall(r"^make ([a-z]+)", text)}
    assert targets <= set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))


def test_every_metric_is_described_with_its_type_and_none_that_is_not() -> None:
    text = (ROOT / "docs/metrics.md").read_text()
    described = dict(re.findall(r"^\| `(corymb_\w+)` \| (\w+) \|", text, re.MULTILINE))
    exposed = dict(re.findall(r"^# TYPE (\w+) (\w+)$", Metrics("model").exposition().decode(), re.MULTILINE))
    assert described == exposed


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.name)
def test_metrics_that_are_named_in_passing_exist(path: Path) -> None:
    exposed = set(re.findall(r"^# TYPE (\w+) \w+$", Metrics("model").exposition().decode(), re.MULTILINE))
    named = set(re.findall(r"\bcorymb_[a-z0-9_]*[a-z0-9](?![\w*])", path.read_text()))
    assert {name for name in named if re.sub(r"_(bucket|sum|count)$", "", name) not in exposed} == set()
