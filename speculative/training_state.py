"""What a training run must keep to go on after it was killed: small enough to carry to another machine.

Weights are kept in 24 bits, both moments in 16: 55 MB for a draft of 7.8 M. A run that saves goes on from what it
saved, not from the finer numbers it had: one that was killed and one that was not see the same numbers at every step.
"""

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from corymb.models.errors import BrokenModel

STATE = "state.safetensors"
_MOMENTS = ("exp_avg", "exp_avg_sq")


@dataclass
class Progress:
    """Where a run is."""

    step: int = 0  # the next one
    seconds: float = 0.0  # spent in steps
    history: list[dict[str, Any]] = field(default_factory=list)  # figures, one entry an interval


class TrainingState:
    """Owns a run's file. `signature` names everything that the numbers depend on: a file of another run is refused."""

    def __init__(self, folder: Path, signature: Mapping[str, Any]) -> None:
        self._path = folder / STATE
        self._signature = json.loads(json.dumps(signature))
        folder.mkdir(parents=True, exist_ok=True)

    def load(self, model: nn.Module, optimizer: torch.optim.Optimizer) -> Progress:
        """Restores what was saved, if anything was. Raises BrokenModel for another run's file."""
        if not self._path.exists():
            return Progress()
        tensors = load_file(self._path)
        facts = json.loads(bytes(tensors.pop("facts").tolist()).decode())
        changed = sorted(name for name, value in self._signature.items() if facts["signature"].get(name, None) != value)
        if changed:
            raise BrokenModel(
                f"{self._path} was trained with another {', '.join(changed)}; train into another folder, or repeat "
                "the command with the values of before."
            )
        for name, weight in model.named_parameters():
            weight.data.copy_(unpacked(tensors[f"{name}.bytes"]).view_as(weight))
            state = optimizer.state[weight]
            state["step"] = torch.tensor(float(facts["step"]), device=_step_device(weight))
            for moment in _MOMENTS:
                state[moment] = tensors[f"{name}.{moment}"].to(weight.device, torch.float32)
        return Progress(facts["step"], facts["seconds"], facts["history"])

    def save(self, model: nn.Module, optimizer: torch.optim.Optimizer, progress: Progress) -> None:
        """Writes everything, whole or not at all; the run's own numbers become what was written."""
        tensors: dict[str, Tensor] = {}
        for name, weight in model.named_parameters():
            packed = packed_bytes(weight.data)
            tensors[f"{name}.bytes"] = packed.cpu()
            weight.data.copy_(unpacked(packed).view_as(weight))
            state = optimizer.state[weight]
            for moment in _MOMENTS:
                kept = state[moment].to(torch.bfloat16)
                tensors[f"{name}.{moment}"] = kept.cpu()
                state[moment].copy_(kept)
        facts = {
            "signature": self._signature,
            "step": progress.step,
            "seconds": progress.seconds,
            "history": progress.history,
        }
        # In the same file: two files could be of different steps after a kill.
        tensors["facts"] = torch.frombuffer(bytearray(json.dumps(facts).encode()), dtype=torch.uint8)
        write_whole(self._path, lambda partial: save_file(tensors, partial))


def packed_bytes(weights: Tensor) -> Tensor:
    """The three upper bytes of every float32, rounded; uint8 [N, 3]."""
    numbers = weights.contiguous().view(-1).view(torch.int32)
    rounded = numbers + 0x80
    return rounded.view(torch.uint8).view(-1, 4)[:, 1:].contiguous()


def unpacked(packed: Tensor) -> Tensor:
    """Float32 [N] of what `packed_bytes` gave."""
    whole = torch.zeros(len(packed), 4, dtype=torch.uint8, device=packed.device)
    whole[:, 1:] = packed
    return whole.view(torch.float32).view(-1)


def write_whole(path: Path, write: Any) -> None:
    """Lets `write` make a file that takes the place of `path` only when it is on the disk."""
    partial = path.with_suffix(".partial")
    write(partial)
    partial.chmod(0o644)  # the tensors' library keeps its files from everybody else
    with partial.open("rb") as file:
        os.fsync(file.fileno())
    partial.replace(path)


def _step_device(weight: Tensor) -> torch.device:
    """A fused optimiser on a GPU keeps its count there."""
    return weight.device if weight.device.type == "cuda" else torch.device("cpu")
