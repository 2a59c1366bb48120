"""benchmarks/speculation.py at its smallest: all modes answer alike, and its figures become a plot."""

import json
import shutil
import sys
from pathlib import Path

import pytest

from corymb.serve import draft_command

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


def test_all_modes_answer_alike_and_their_figures_can_be_drawn(
    target: Path, trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "path", [str(BENCHMARKS), *sys.path])
    import record
    import speculation
    import speculation_plot

    monkeypatch.setattr(record, "RESULTS", tmp_path)
    monkeypatch.setattr(speculation_plot, "RESULTS", tmp_path)
    draft = tmp_path / "draft"
    shutil.copytree(trained, draft, ignore=shutil.ignore_patterns("work"))
    few = ["--device", "cpu", "--rows", "1", "3", "--num-steps", "2", "--context-tokens", "16"]
    assert draft_command.run(["profile", str(target), "--draft", str(draft), *few]) == 0
    sizes = ["--batches", "1", "3", "--rounds", "3", "--max-answer", "16", "--dtype", "float32"]
    speculation.main([str(target), "--draft", str(draft), *sizes])
    lines = [json.loads(line) for line in (tmp_path / "speculation.jsonl").read_text().splitlines()]
    same = [line["value"] for line in lines if line["metric"] == "same_answers"]
    assert same == [1.0] * 6
    capsys.readouterr()
    speculation.main(["--plot"])
    printed = capsys.readouterr().out
    assert "| batch | plain | static | compact | compact ÷ best other |" in printed
    assert "| batch | arithmetic | list | chat |" in printed
    assert (tmp_path / "speculation.svg").read_text().count("<polyline") == 3
