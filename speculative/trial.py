"""Runs a draft through the real loop: scheduler, cache, runner and acceptance as they serve, over prompts of ours."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from corymb.models.build import Built, RunnerOptions, build
from corymb.models.speculation import Speculation
from corymb.scheduler.config import SchedulerConfig
from corymb.scheduler.messages import Sampling
from corymb.speculative.calibration import CALIBRATION, Calibration, Scales, errors_of, fit, logit, scaled
from corymb.speculative.conversations import Speech
from corymb.speculative.draft_files import update_metrics, write_json
from corymb.speculative.prompts import judged
from corymb.speculative.rounds import Rounds, Watching, report
from corymb.speculative.training_run import OnProgress
from corymb.speculative.writing import Task, Writer

ROOM = 512  # tokens of a prompt


@dataclass(frozen=True, slots=True)
class Trial:
    """What to run. `speculation` drafts with confidence as the head gives it, without temperatures."""

    target: Path
    draft: Path
    speculation: Speculation
    num_drafts: int
    device: Literal["cpu", "cuda"]
    temperatures: Sequence[float] = (0.0, 0.7)
    num_prompts: int = 300
    max_answer: int = 150
    num_running: int = 64
    seed: int = 0


def calibrate(trial: Trial, speech: Speech, on_progress: OnProgress) -> dict[str, Any]:
    """Fits temperatures at each sampling temperature and writes them into the draft's folder; returns what it wrote.

    `temperatures` are those of the highest sampling temperature, which need them most; `by_temperature` holds all.
    """
    fitted: dict[str, Calibration] = {}
    samples: dict[str, int] = {}
    # Other prompts than those that `evaluate` judges by.
    for heat, rounds in _each(trial, speech, on_progress, seed=trial.seed + 2):
        fitted[_name(heat)] = fit(logit(_confidence(rounds)), rounds.prefixes(trial.num_drafts))
        samples[_name(heat)] = len(rounds.accepted)
    last = fitted[_name(max(trial.temperatures))]
    table = {
        "temperatures": last.temperatures,
        "dataset": "held-out prompts",
        "num_samples": samples[_name(max(trial.temperatures))],
        "ece_before": last.ece_before,
        "ece_after": last.ece_after,
        "by_temperature": {name: one.temperatures for name, one in fitted.items()},
    }
    write_json(trial.draft / CALIBRATION, table)
    return table


def evaluate(trial: Trial, speech: Speech, on_progress: OnProgress, *, sts: Scales | None) -> dict[str, Any]:
    """Judges a draft by held-out prompts and writes the figures into its metrics.json, as they come; returns them.

    `sts`: temperatures of its confidence.
    """
    found: dict[str, Any] = {}
    about = {"prompts": trial.num_prompts, "max_answer_tokens": trial.max_answer, "temperatures": found}
    for heat, rounds in _each(trial, speech, on_progress, seed=trial.seed + 1):
        entry = report(rounds, trial.num_drafts)
        if rounds.confidence is not None:
            entry |= _errors(rounds, trial.num_drafts, None if sts is None else sts.of(heat))
        found[_name(heat)] = entry
        update_metrics(trial.draft, f"evaluation_of_{trial.num_drafts}", about)
    return found


def _errors(rounds: Rounds, num_drafts: int, sts: Sequence[float] | None) -> dict[str, Any]:
    confidence, prefixes = _confidence(rounds), rounds.prefixes(num_drafts)
    entry = {
        "mean_confidence": np.round(confidence.mean(axis=0), 4).tolist(),
        "calibration_error_before": np.round(errors_of(confidence, prefixes), 4).tolist(),
    }
    if sts is not None:
        after = errors_of(scaled(confidence, np.array(sts)), prefixes)
        entry["calibration_error_after"] = np.round(after, 4).tolist()
    return entry


def _each(trial: Trial, speech: Speech, on_progress: OnProgress, *, seed: int) -> Any:
    """Rounds at each sampling temperature, from one runner."""
    prompts = [(kind, speech.prompt(words)) for kind, words in judged(trial.num_prompts, seed)]
    longest = max(len(ids) for _, ids in prompts) + trial.max_answer + trial.num_drafts + 2
    built = build(options_of(trial, longest), lambda *_: None)
    try:
        for heat in trial.temperatures:
            tasks = [Task(ids, _sampling(trial, heat, index)) for index, (_, ids) in enumerate(prompts)]
            watching = Watching(trial.num_drafts, {ids.tobytes(): kind for kind, ids in prompts})
            _writer(built, trial, watching).write(tasks, _named(on_progress, f"temperature {heat:g}"))
            yield heat, watching.rounds()
    finally:
        built.runner.close()


def options_of(trial: Trial, longest: int) -> RunnerOptions:
    """A runner for requests of so many tokens."""
    return RunnerOptions(
        trial.target,
        device=trial.device,
        dtype="bfloat16" if trial.device == "cuda" else "float32",
        context_length=longest,
        max_running_requests=trial.num_running,
        max_total_tokens=trial.num_running * (longest + 2 * trial.num_drafts + 2),
        enable_prefix_cache=False,
        speculation=trial.speculation,
    )


def _writer(built: Built, trial: Trial, watching: Watching) -> Writer:
    # Each result is read before the next step: no row drafts behind its own end.
    config = SchedulerConfig(max_running_requests=trial.num_running, chunked_prefill_size=None, overlap_depth=0)
    return Writer(built, config, windows=watching)


def _sampling(trial: Trial, heat: float, index: int) -> Sampling:
    return Sampling(max_new_tokens=trial.max_answer, temperature=heat, seed=trial.seed * 1_000_003 + index)


def _named(on_progress: OnProgress, what: str) -> Callable[[int, int], None]:
    return lambda done, total: on_progress(what, done, total)


def _confidence(rounds: Rounds) -> Any:
    assert rounds.confidence is not None
    return rounds.confidence


def _name(heat: float) -> str:
    return f"{heat:g}"
