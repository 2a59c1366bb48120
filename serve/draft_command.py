"""`corymb draft …`: makes drafts and looks at what they are worth, without a server around them."""

import argparse
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from corymb.models.architectures import read_config
from corymb.models.progress import bars
from corymb.models.source import resolve
from corymb.serve.config import ConfigError, cache_folder, is_offline
from corymb.serve.devices import ResolvedDevice, find_gpu, resolve_device
from corymb.serve.draft_flags import COMMANDS, chosen, draft_parser
from corymb.serve.draft_progress import progress
from corymb.serve.draft_speech import ChatSpeech
from corymb.serve.flags import show_error
from corymb.speculative.allocation import Compact
from corymb.speculative.block_speculation import read_block_speculation
from corymb.speculative.calibration import CALIBRATION, BadCalibration, Scales, read_temperatures
from corymb.speculative.conversations import Size
from corymb.speculative.cost_profile import TABLE, profile
from corymb.speculative.draft_shape import Wishes
from corymb.speculative.lessons import Plan
from corymb.speculative.training import Schedule
from corymb.speculative.training_run import Job, train
from corymb.speculative.trial import Trial, calibrate, evaluate

WORK_IS_LEFT = 75  # what sendmail says when somebody should try again


def run(arguments: Sequence[str]) -> int:
    """Runs one command; returns the exit status. Raises ModelError."""
    command = chosen(arguments)
    if command is None:
        return show_error("corymb draft", f"Write corymb draft {' or '.join(COMMANDS)}, then a model and flags.")
    flags = draft_parser(command).parse(arguments[1:])
    return {"train": _train, "calibrate": _calibrate, "evaluate": _evaluate, "profile": _profile}[command](flags)


def target_of(flags: argparse.Namespace) -> Path:
    """The model's folder. Raises ModelError."""
    with bars() as on_progress:
        source = resolve(
            flags.model_path,
            cache_dir=cache_folder(flags.cache_dir),
            offline=is_offline(flags.offline),
            on_progress=on_progress,
        )
    return source.folder


def device_of(flags: argparse.Namespace) -> ResolvedDevice:
    """Where it runs."""
    return resolve_device(flags.device, None if flags.device == "cpu" else find_gpu())


def _train(flags: argparse.Namespace) -> int:
    target, out = target_of(flags), Path(flags.out)
    speech = ChatSpeech(target)
    mask = speech.unused_token_id if flags.mask_token_id is None else flags.mask_token_id
    job = Job(
        target=target,
        out=out,
        work=Path(flags.work) if flags.work else out / "work",
        device=device_of(flags),
        wishes=_wishes(flags, mask),
        size=Size(
            num_conversations=flags.num_conversations,
            max_tokens=flags.max_tokens,
            max_answer=flags.max_answer_tokens,
            shard=flags.conversations_per_file,
            seed=flags.seed,
        ),
        plan=Plan(batch=flags.batch_size, num_anchors=flags.num_anchors, num_drafts=flags.num_drafts),
        schedule=Schedule(flags.num_steps, flags.learning_rate, flags.warm_up_steps, flags.save_steps),
        num_writing=flags.max_running_requests,
        seed=flags.seed,
        stop_after_s=flags.stop_after_s,
    )
    if train(job, speech, progress()):
        print(f"The draft is in {out}.")
        return 0
    print("Time is up; the same command goes on from here.")
    return WORK_IS_LEFT


def _wishes(flags: argparse.Namespace, mask: int) -> Wishes:
    return Wishes(
        num_drafts=flags.num_drafts,
        num_layers=flags.num_layers,
        intermediate_size=flags.intermediate_size,
        target_layers=tuple(flags.target_layers),
        markov=flags.markov_head,
        markov_rank=flags.markov_rank,
        markov_tied=not flags.no_markov_tied,
        mask_token_id=mask,
    )


def _calibrate(flags: argparse.Namespace) -> int:
    trial = _trial(flags)
    table = calibrate(trial, ChatSpeech(trial.target), progress())
    print(f"Temperatures {rounded(table['temperatures'])} are in {trial.draft / CALIBRATION}.")
    return 0


def _evaluate(flags: argparse.Namespace) -> int:
    trial = _trial(flags)
    found = evaluate(trial, ChatSpeech(trial.target), progress(), sts=_temperatures(trial))
    for heat, entry in found.items():
        kinds = ", ".join(f"{kind} {length:.2f}" for kind, length in entry["accept_length_by_kind"].items())
        print(f"temperature {heat}: accept length {entry['accept_length']:.3f} over {entry['rounds']} rounds ({kinds})")
    return 0


def _profile(flags: argparse.Namespace) -> int:
    trial = _trial(flags)
    rows = sorted(set(flags.rows))
    table = profile(trial, rows, num_steps=flags.num_steps, context_tokens=flags.context_tokens, on_progress=progress())
    error = table["median_relative_error"]
    print(f"The table is in {trial.draft / TABLE}; it is {error:.1%} off what was measured, in the middle.")
    return 0


def _temperatures(trial: Trial) -> Scales | None:
    """What `calibrate` found, if it has run."""
    path = trial.draft / CALIBRATION
    try:
        return read_temperatures(path, trial.num_drafts) if path.exists() else None
    except BadCalibration as error:
        raise ConfigError(f"{error} Run corymb draft calibrate again.") from error


def _trial(flags: argparse.Namespace) -> Trial:
    target, draft = target_of(flags), Path(flags.draft)
    num_drafts = flags.num_drafts if "num_drafts" in flags else None
    speculation = read_block_speculation(
        draft, "DSPARK", read_config(target), num_drafts=num_drafts, needs_confidence=True
    )
    given = {name: value for name, value in vars(flags).items() if name in ("num_prompts", "temperatures")}
    if "max_answer_tokens" in flags:
        given |= {"max_answer": flags.max_answer_tokens, "num_running": flags.max_running_requests}
    return Trial(
        target,
        draft,
        replace(speculation, allotment=Compact()),
        num_drafts=speculation.num_drafts,
        device=device_of(flags),
        seed=flags.seed,
        **given,
    )


def rounded(numbers: Sequence[float]) -> str:
    """For people."""
    return ", ".join(f"{number:.2f}" for number in numbers)
