"""`corymb draft …`: makes drafts and looks at what they are worth, without a server around them."""

import argparse
from collections.abc import Sequence
from pathlib import Path

from corymb.models.progress import bars
from corymb.models.source import resolve
from corymb.serve.config import cache_folder, is_offline
from corymb.serve.devices import ResolvedDevice, find_gpu, resolve_device
from corymb.serve.draft_flags import COMMANDS, chosen, draft_parser
from corymb.serve.draft_progress import progress
from corymb.serve.draft_speech import ChatSpeech
from corymb.serve.flags import show_error
from corymb.speculative.conversations import Size
from corymb.speculative.draft_shape import Wishes
from corymb.speculative.lessons import Plan
from corymb.speculative.training import Schedule
from corymb.speculative.training_run import Job, train

WORK_IS_LEFT = 75  # what sendmail says when somebody should try again


def run(arguments: Sequence[str]) -> int:
    """Runs one command; returns the exit status. Raises ModelError."""
    command = chosen(arguments)
    if command is None:
        return show_error("corymb draft", f"Write corymb draft {' or '.join(COMMANDS)}, then a model and flags.")
    flags = draft_parser(command).parse(arguments[1:])
    return _train(flags)


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
