"""The whole of a draft's training: conversations, features, steps, files. Every part may be killed and repeated."""

import gc
import importlib
import time
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal, Protocol

import numpy as np
import torch

from corymb.kernels.distillation import Distil, distil
from corymb.kernels.select import Wish
from corymb.models.architectures import read_config
from corymb.models.build import RunnerOptions, build
from corymb.models.cuda_options import CudaOptions
from corymb.models.errors import UnsupportedModel
from corymb.models.memory import host_memory
from corymb.scheduler.config import SchedulerConfig
from corymb.speculative.conversations import Conversations, Size, Speech
from corymb.speculative.corpus import Corpus
from corymb.speculative.draft_files import update_metrics, write_draft
from corymb.speculative.draft_loss import Vocabulary
from corymb.speculative.draft_shape import DraftShape, Wishes, shape_for
from corymb.speculative.lessons import Features, Lessons, Plan
from corymb.speculative.teacher import CachedFeatures, Looking, OnlineFeatures, Teacher, open_teacher, read_shared
from corymb.speculative.trainable import TrainableDraft, initialise
from corymb.speculative.training import Schedule, Trainer
from corymb.speculative.training_state import Progress
from corymb.speculative.writing import Writer

CACHE_SHARE = {"cuda": 0.75, "cpu": 0.25}  # of the memory that is free, for features
MAX_STEP_TOKENS = 16_384


class OnProgress(Protocol):
    """Hears how far a piece of work has come."""

    def __call__(self, what: str, done: int, total: int, detail: str = "") -> None: ...


@dataclass(frozen=True, slots=True)
class Job:
    """What to train, and where. The work folder holds conversations, which can be made again, and state/, which is all
    that a run needs to go on elsewhere."""

    target: Path
    out: Path
    work: Path
    device: Literal["cpu", "cuda"]
    wishes: Wishes
    size: Size
    plan: Plan
    schedule: Schedule
    num_writing: int = 1024  # requests that the target answers at once
    seed: int = 0
    stop_after_s: float | None = None  # None: when all is done


def train(job: Job, speech: Speech, on_progress: OnProgress) -> bool:
    """Trains to the end, or as far as there is time; returns whether it came to the end. Raises ModelError."""
    until_s = time.monotonic() + (job.stop_after_s or float("inf"))
    shape = target_shape(job)
    conversations = Conversations(job.work / "conversations", job.size, speech)
    _write(job, conversations, on_progress, until_s)
    if conversations.missing:
        return False
    _give_back_memory()
    corpus = Corpus(conversations.load())
    device = torch.device(job.device)
    teacher = open_teacher(job.target, Looking(shape.wishes.target_layers, MAX_STEP_TOKENS, job.device))
    features = _features(teacher, corpus, on_progress)
    shared = read_shared(job.target, device, teacher.dtype)
    draft = TrainableDraft(shape, shared.embedding).to(device)
    initialise(draft, job.seed)
    try:
        lessons = Lessons(corpus, features, job.plan, seed=job.seed, device=device)
    except ValueError as error:
        raise UnsupportedModel(f"The target's conversations cannot be learned from: {error}.") from error
    trainer = Trainer(
        draft,
        lessons,
        Vocabulary(shared.head, _distil(job.device)),
        job.schedule,
        folder=job.work / "state",
        signature=_signature(job, shape),
    )
    trainer.run(lambda progress: on_progress("train", *_told(progress, job.schedule)), until_s=until_s)
    if trainer.is_done:
        size_bytes = write_draft(job.out, draft, num_anchors=job.plan.num_anchors)
        update_metrics(job.out, "training", _summary(job, trainer.progress, corpus, size_bytes))
    return trainer.is_done


def target_shape(job: Job) -> DraftShape:
    """The draft's shape. Raises ModelError for a target that none can be trained for."""
    config = read_config(job.target)
    if config.decoder is None:
        raise UnsupportedModel(f"{config.architecture} has no hidden states for a draft to look at.")
    return shape_for(config.decoder, config.architecture, job.wishes)


def _write(job: Job, conversations: Conversations, on_progress: OnProgress, until_s: float) -> None:
    """Lets the target write what is missing, as far as there is time."""
    missing = conversations.missing
    if not missing:
        return
    built = build(_writing_options(job), lambda *_: None)
    writer = Writer(built, SchedulerConfig(max_running_requests=job.num_writing, chunked_prefill_size=None))
    taken_s = 0.0
    for number in missing:
        begun_s = time.monotonic()
        if begun_s + taken_s >= until_s:
            break
        conversations.make(number, writer, partial(on_progress, f"conversations {number + 1}/{job.size.num_shards}"))
        taken_s = time.monotonic() - begun_s
    built.runner.close()


def _writing_options(job: Job) -> RunnerOptions:
    return RunnerOptions(
        job.target,
        device=job.device,
        dtype="bfloat16" if job.device == "cuda" else "float32",
        context_length=job.size.max_tokens,
        max_running_requests=job.num_writing,
        max_total_tokens=job.num_writing * job.size.max_tokens,
        enable_prefix_cache=False,
        cuda=CudaOptions(
            attention=Wish(both="triton"),  # FlashInfer would compile for minutes first
            graph_max_tokens=job.num_writing,
            max_step_tokens=MAX_STEP_TOKENS + job.num_writing,
        ),
    )


def _give_back_memory() -> None:
    """What the target wrote with, and nobody holds any more: features need it next."""
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def _features(teacher: Teacher, corpus: Corpus, on_progress: OnProgress) -> Features:
    """Computed once where they fit, or else for every step."""
    needed = int(corpus.lengths.sum()) * teacher.token_bytes
    kind: Literal["cpu", "cuda"] = "cuda" if teacher.device.type == "cuda" else "cpu"
    free = torch.cuda.mem_get_info()[0] if kind == "cuda" else host_memory().available_bytes
    if needed > CACHE_SHARE[kind] * free:
        return OnlineFeatures(teacher, corpus)
    return CachedFeatures(teacher, corpus, lambda done, total: on_progress("features", done, total))


def _distil(device: Literal["cpu", "cuda"]) -> Distil:
    """The loss in one kernel, where there is a GPU."""
    if device == "cpu":
        return distil
    # By name: the packages that these modules need are there only with the `gpu` extra.
    launch = importlib.import_module("corymb.models.cuda_build").make_parts(CudaOptions()).launch
    fused: Distil = importlib.import_module("corymb.kernels.triton_distillation").TritonDistillation(launch)
    return fused


def _signature(job: Job, shape: DraftShape) -> dict[str, Any]:
    """What makes a run another run."""
    return {
        "shape": asdict(shape),
        "conversations": asdict(job.size),
        "plan": asdict(job.plan),
        "seed": job.seed,
        "device": job.device,
    }


def _told(progress: Progress, schedule: Schedule) -> tuple[int, int, str]:
    last = progress.history[-1]
    detail = f"loss {last['loss']:.3f}, forced length {last['forced_length']:.2f}"
    return progress.step, schedule.num_steps, detail


def _summary(job: Job, progress: Progress, corpus: Corpus, size_bytes: int) -> dict[str, Any]:
    kinds, counts = np.unique(corpus.kinds, return_counts=True)
    return {
        "steps": progress.step,
        "seconds": round(progress.seconds, 1),
        "conversations": len(corpus),
        "tokens": int(corpus.lengths.sum()),
        "kinds": dict(zip(kinds.tolist(), counts.tolist(), strict=True)),
        "file_bytes": size_bytes,
        "plan": asdict(job.plan),
        "schedule": asdict(job.schedule),
        "history": progress.history,
    }
