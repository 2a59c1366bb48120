"""`corymb draft train` on a small random model: it learns, and a run that was killed ends where another does."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from safetensors.torch import load_file
from small import SMALL, STEPS

from corymb.serve import draft_command
from corymb.serve.cli import corymb
from corymb.serve.draft_command import WORK_IS_LEFT
from corymb.serve.draft_progress import Lines
from corymb.speculative import training_run


def test_the_loss_falls(trained: Path) -> None:
    metrics = json.loads((trained / "metrics.json").read_text())["training"]
    losses = [entry["loss"] for entry in metrics["history"]]
    assert [entry["step"] for entry in metrics["history"]] == [15, 30, 45, 50, 60]
    assert losses[-1] < 0.97 * losses[0], losses
    assert metrics["conversations"] <= 24
    assert "self" in metrics["kinds"]
    assert sum(metrics["kinds"].values()) == metrics["conversations"]


def test_the_files_are_those_of_a_published_draft(trained: Path) -> None:
    config = json.loads((trained / "config.json").read_text())
    assert config["architectures"] == ["Qwen3DSparkModel"]
    assert (config["block_size"], config["mask_token_id"], config["target_layer_ids"]) == (3, 263, [1])
    tensors = load_file(trained / "model.safetensors")
    assert {str(tensor.dtype) for tensor in tensors.values()} == {"torch.bfloat16"}
    assert {name: tuple(tensor.shape) for name, tensor in tensors.items()} == {
        "fc.weight": (32, 32),
        "hidden_norm.weight": (32,),
        "layers.0.input_layernorm.weight": (32,),
        "layers.0.mlp.down_proj.weight": (32, 24),
        "layers.0.mlp.gate_proj.weight": (24, 32),
        "layers.0.mlp.up_proj.weight": (24, 32),
        "layers.0.post_attention_layernorm.weight": (32,),
        "layers.0.self_attn.k_norm.weight": (8,),
        "layers.0.self_attn.k_proj.weight": (16, 32),
        "layers.0.self_attn.o_proj.weight": (32, 32),
        "layers.0.self_attn.q_norm.weight": (8,),
        "layers.0.self_attn.q_proj.weight": (32, 32),
        "layers.0.self_attn.v_proj.weight": (16, 32),
        "norm.weight": (32,),
        "markov_head.tied_in.weight": (8, 32),
        "markov_head.tied_out.weight": (8, 32),
        "markov_head.gate_proj.weight": (8, 40),
        "markov_head.gate_proj.bias": (8,),
        "confidence_head.proj.weight": (1, 40),
        "confidence_head.proj.bias": (1,),
    }


class Killed(BaseException):
    """Stands in for a signal."""


def test_a_run_that_was_killed_ends_where_another_does(
    target: Path, trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed while conversations are written, and before the second save."""
    arguments = ["train", str(target), "--out", str(tmp_path), *SMALL, *STEPS]
    for stage, place in (("conversations 2/2", 5), ("train", 30)):

        def die(what: str, done: int, _total: int, _detail: str = "", *, at: tuple[str, int] = (stage, place)) -> None:
            if (what, done) == at:
                raise Killed

        monkeypatch.setattr(draft_command, "progress", lambda die=die: die)
        with pytest.raises(Killed):
            draft_command.run(arguments)
        assert not (tmp_path / "model.safetensors").exists()
    written: list[str] = []
    monkeypatch.setattr(draft_command, "progress", lambda: lambda what, *_: written.append(what))
    assert draft_command.run(arguments) == 0
    assert not [what for what in written if what.startswith("conversations")]
    assert (tmp_path / "model.safetensors").read_bytes() == (trained / "model.safetensors").read_bytes()


def test_a_kill_between_any_two_instructions_leaves_a_whole_state(target: Path, trained: Path, tmp_path: Path) -> None:
    (tmp_path / "work").mkdir()
    (tmp_path / "work" / "conversations").symlink_to(trained / "work" / "conversations")
    arguments = ["train", str(target), "--out", str(tmp_path), *SMALL, "--num-steps", "5000", "--save-steps", "1"]
    code = f"from corymb.serve.cli import corymb; corymb({['draft', *arguments]!r})"
    state = tmp_path / "work" / "state" / "state.safetensors"
    with subprocess.Popen([sys.executable, "-P", "-c", code], env=os.environ, stderr=subprocess.DEVNULL) as child:
        try:
            while not state.exists():
                assert child.poll() is None
                time.sleep(0.02)
        finally:
            child.send_signal(signal.SIGKILL)
    assert load_file(state)["facts"].numel() > 0
    # There is no time for a step: it loads, and says that work is left.
    assert draft_command.run([*arguments, "--stop-after", "0.001"]) == WORK_IS_LEFT


def test_another_run_in_the_same_folder_is_refused(
    target: Path, trained: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        corymb(["draft", "train", str(target), "--out", str(trained), *SMALL, *STEPS, "--learning-rate", "0.1"])
    assert ended.value.code == 2
    assert "was trained with another schedule" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ([], "Write corymb draft train"),
        (["trian"], "Write corymb draft train"),
        (["train", "corymb/tape"], "the following arguments are required: --out"),
        (["train", "corymb/tape", "--out", "x"], "CorymbTape has no hidden states"),
        (["train", "TARGET", "--out", "x", "--target-layers", "3"], "must rise, and lie between 0 and 2"),
        (["train", "TARGET", "--out", "x", "--mask-token-id", "264"], "is no token of the target"),
        (["train", "TARGET", "--out", "x", "--num-steps", "0"], "not a whole number of at least 1"),
    ],
)
def test_what_cannot_work_is_refused_in_a_sentence(
    arguments: list[str], sentence: str, target: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = [str(target) if argument == "TARGET" else argument for argument in arguments]
    with pytest.raises(SystemExit) as ended:
        corymb(["draft", *given])
    assert ended.value.code == 2
    assert sentence in capsys.readouterr().err


def test_features_that_do_not_fit_are_computed_for_every_step(
    target: Path, trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(training_run.CACHE_SHARE, "cpu", 0.0)
    (tmp_path / "work").mkdir()
    (tmp_path / "work" / "conversations").symlink_to(trained / "work" / "conversations")
    assert draft_command.run(["train", str(target), "--out", str(tmp_path), *SMALL, *STEPS]) == 0
    cached = json.loads((trained / "metrics.json").read_text())["training"]["history"]
    online = json.loads((tmp_path / "metrics.json").read_text())["training"]["history"]
    for one, other in zip(cached, online, strict=True):
        assert one["loss"] == pytest.approx(other["loss"], rel=1e-3)


def test_a_log_gets_a_line_when_work_begins_and_ends_and_now_and_then(tmp_path: Path) -> None:
    now_s = 0.0
    with (tmp_path / "log").open("w+") as out:
        say = Lines(out, clock=lambda: now_s)
        for done in range(1, 31):
            say("train", done, 30, f"loss {done}")
            now_s += 1
        out.seek(0)
        assert [line.split(" of")[0] for line in out] == ["train: 1", "train: 11", "train: 21", "train: 30"]
