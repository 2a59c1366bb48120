"""Writes a trained draft's folder, in the dialect that published drafts have."""

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from corymb.speculative.trainable import TrainableDraft
from corymb.speculative.training_state import write_whole

WEIGHTS, CONFIG, METRICS = "model.safetensors", "config.json", "metrics.json"


def write_draft(folder: Path, draft: TrainableDraft, *, num_anchors: int) -> int:
    """Writes config and weights, those in bfloat16 and without what the draft shares with its target; returns bytes."""
    folder.mkdir(parents=True, exist_ok=True)
    tensors = {name: weight.detach().to("cpu", torch.bfloat16) for name, weight in draft.named_parameters()}
    write_whole(folder / WEIGHTS, lambda path: save_file(tensors, path, metadata={"format": "pt"}))
    write_json(folder / CONFIG, draft.shape.published(num_anchors))
    return (folder / WEIGHTS).stat().st_size


def write_json(path: Path, value: Any) -> None:
    """Writes an object, whole or not at all."""
    write_whole(path, lambda partial: partial.write_text(json.dumps(value, indent=1) + "\n", encoding="utf-8"))


def update_metrics(folder: Path, part: str, value: Any) -> None:
    """Puts one command's figures beside those of the others."""
    path = folder / METRICS
    kept = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    write_json(path, kept | {part: value})
