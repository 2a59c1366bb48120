"""`corymb draft calibrate`, `evaluate` and `profile` on a draft that `corymb draft train` made."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from corymb.scheduler.messages import Sampling
from corymb.scheduler.plan import LAST_SAMPLED, Drafted, Opened, Sampled, StepPlan
from corymb.serve import draft_command
from corymb.serve.cli import corymb
from corymb.speculative.cost_model import read_table
from corymb.speculative.cost_profile import Cell, Measured, Step
from corymb.speculative.prompts import judged
from corymb.speculative.rounds import Watching

FEW = ["--device", "cpu", "--num-prompts", "12", "--max-answer-tokens", "24", "--max-running-requests", "8"]


@pytest.fixture(scope="module")
def draft(trained: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy, which these tests write to."""
    folder = tmp_path_factory.mktemp("copy") / "draft"
    shutil.copytree(trained, folder, ignore=shutil.ignore_patterns("work"))
    return folder


def test_a_draft_is_calibrated_and_judged_by_the_real_loop(target: Path, draft: Path) -> None:
    assert draft_command.run(["evaluate", str(target), "--draft", str(draft), *FEW]) == 0
    first = json.loads((draft / "metrics.json").read_text())
    assert draft_command.run(["calibrate", str(target), "--draft", str(draft), *FEW]) == 0
    table = json.loads((draft / "sts.json").read_text())
    assert len(table["temperatures"]) == len(table["ece_before"]) == len(table["ece_after"]) == 3
    assert set(table["by_temperature"]) == {"0", "0.7"}
    assert table["temperatures"] == table["by_temperature"]["0.7"]
    assert draft_command.run(["evaluate", str(target), "--draft", str(draft), *FEW]) == 0
    second = json.loads((draft / "metrics.json").read_text())
    assert second["training"] == first["training"]
    for heat, entry in second["evaluation_of_3"]["temperatures"].items():
        kinds = entry["rounds_by_kind"]
        assert set(kinds) == {"arithmetic", "list", "chat", "poem", "code"}
        assert sum(kinds.values()) == entry["rounds"] > 60
        assert 1 <= entry["accept_length"] <= 4
        assert entry["accept_length"] == pytest.approx(1 + sum(entry["survival"]), abs=1e-3)
        assert len(entry["calibration_error_before"]) == len(entry["calibration_error_after"]) == 3
        # The same prompts and seeds: calibration says what confidence is worth, and changes no draft.
        plain = first["evaluation_of_3"]["temperatures"][heat]
        assert "calibration_error_after" not in plain
        assert {name: plain[name] for name in plain} == {name: entry[name] for name in plain}


def test_a_draft_is_judged_by_the_first_of_its_guesses_too(target: Path, draft: Path) -> None:
    only = ["--num-drafts", "2", "--temperatures", "0"]
    assert draft_command.run(["evaluate", str(target), "--draft", str(draft), *FEW, *only]) == 0
    found = json.loads((draft / "metrics.json").read_text())["evaluation_of_2"]
    entry = found["temperatures"]["0"]
    assert len(entry["survival"]) == 2
    assert 1 <= entry["accept_length"] <= 3


def test_a_profile_is_a_table_that_the_cost_model_reads(target: Path, draft: Path) -> None:
    arguments = ["--draft", str(draft), "--device", "cpu", "--rows", "1", "3", "--num-steps", "3"]
    assert draft_command.run(["profile", str(target), *arguments, "--context-tokens", "16"]) == 0
    table = json.loads((draft / "sps.json").read_text())
    assert table["bs_probes"] == [1, 3]
    assert table["m_probes"][0] == 1
    assert table["m_probes"][-1] == 3 * 4
    assert min(table["alpha_seconds"]) > 0
    model = read_table(draft / "sps.json")
    seconds = model.step_s(3, np.arange(10), 0.0, drafts=True)
    assert (np.diff(seconds) >= 0).all()
    assert model.step_s(3, np.array([0]), 0.0, drafts=False)[0] < seconds[0]


def test_a_table_gives_back_costs_that_add_up() -> None:
    measured = Measured()
    for rows in (1, 4):
        for budget in (0, rows, 3 * rows):
            step = Step(0.001 + 0.0005 * rows if budget else 0.0, 0.01 + 0.002 * (rows + budget), 0.0003)
            measured.add({Cell(rows, budget): [step] * 8})
    table = measured.table()
    assert table["bias_seconds"] == 0.0003
    assert table["alpha_seconds"] == pytest.approx([0.0015, 0.003])
    assert table["m_probes"] == [1, 2, 4, 8, 16]
    assert table["theta_seconds"] == pytest.approx([0.012, 0.014, 0.018, 0.026, 0.042])


def test_only_whole_blocks_are_rounds() -> None:
    watching = Watching(3, {np.arange(4, dtype=np.int32).tobytes(): "code"})
    opened = Opened(5, np.arange(4, dtype=np.int32), np.empty(0, np.int32), Sampling(max_new_tokens=9), None)
    for verified, counts in (([3], [3]), ([2], [3]), ([3], [1])):
        plan = StepPlan(
            step=0,
            rows=np.array([5], np.int32),
            widths=np.ones(1, np.int32),
            starts=np.array([4], np.int32),
            token_ids=np.array([LAST_SAMPLED], np.int32),
            slots=np.array([1], np.int32),
            samples=np.ones(1, np.bool_),
            num_outputs=np.ones(1, np.int32),
            opened=[opened],
        )
        confidence = np.full((1, 3), 0.5, np.float32)
        drafted = Drafted(np.array(verified, np.int32), confidence, draft_s=0.0, verify_s=0.0)
        token_ids = np.zeros(sum(counts), np.int32)
        watching.learn(plan, Sampled(token_ids, np.array(counts, np.int32), forward_s=0.0, drafted=drafted))
    rounds = watching.rounds()
    assert rounds.kinds == ["code", "code"]
    assert rounds.accepted.tolist() == [2, 0]
    assert rounds.prefixes(3).tolist() == [[1, 1, 0], [0, 0, 0]]


def test_prompts_that_judge_share_no_topic_with_those_that_train() -> None:
    prompts = judged(300)
    assert len(prompts) == 300
    assert prompts == judged(300) != judged(300, seed=2)
    words = " ".join(text for _, text in prompts)
    assert "hedgehogs" in words
    assert "volcanoes" not in words


@pytest.mark.parametrize(
    ("spoil", "sentence"),
    [
        (lambda folder: (folder / "sts.json").write_text("[1.0]"), "temperatures of 1 places"),
        (lambda folder: (folder / "model.safetensors").unlink(), "holds no weights"),
        (lambda folder: (folder / "config.json").unlink(), "config.json"),
    ],
)
def test_a_folder_that_is_no_draft_is_refused_in_a_sentence(
    spoil, sentence: str, target: Path, trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "draft"
    shutil.copytree(trained, folder, ignore=shutil.ignore_patterns("work"))
    spoil(folder)
    with pytest.raises(SystemExit) as ended:
        corymb(["draft", "evaluate", str(target), "--draft", str(folder), *FEW])
    assert ended.value.code == 2
    assert sentence in capsys.readouterr().err
