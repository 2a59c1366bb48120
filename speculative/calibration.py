"""Sequential temperature scaling: what makes a draft's confidence mean what it says, place after place."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

Float64 = NDArray[np.float64]

TEMPERATURES = np.logspace(-1, 1, 41)
NUM_BINS = 15
_TINY = 1e-8


class BadCalibration(ValueError):
    """A file holds no temperatures that fit; the message says why."""


@dataclass(frozen=True, slots=True)
class Calibration:
    """What a fit found, a number a place. Errors are expected calibration errors of surviving so far."""

    temperatures: list[float]
    ece_before: list[float]
    ece_after: list[float]
    num_samples: int

    def save(self, path: Path, *, dataset: str) -> None:
        """Writes it as SGLang reads it."""
        written = {
            "temperatures": self.temperatures,
            "dataset": dataset,
            "num_samples": self.num_samples,
            "ece_before": self.ece_before,
            "ece_after": self.ece_after,
        }
        path.write_text(json.dumps(written, indent=1) + "\n")


def fit(logits: NDArray[Any], prefix: NDArray[Any]) -> Calibration:
    """Finds each place's temperature, the earlier ones held (dspark.md C.1).

    logits [n, P]: the confidence head's, unscaled; prefix [n, P]: 1 where the draft and all before it were accepted of
    blocks that were verified whole, or the chance that they are. Raises ValueError for other shapes or no blocks.
    """
    if logits.shape != prefix.shape or logits.ndim != 2 or not len(logits):
        raise ValueError(f"logits {logits.shape} and prefixes {prefix.shape} must be blocks by places, of one shape")
    scores, reached = logits.astype(np.float64), prefix.astype(np.float64)
    survives, raw = np.ones(len(scores)), np.ones(len(scores))
    temperatures, before, after = [], [], []
    for place in range(scores.shape[1]):
        raw = raw * _sigmoid(scores[:, place])
        tried = [survives * _sigmoid(scores[:, place] / heat) for heat in TEMPERATURES]
        errors = [calibration_error(chances, reached[:, place]) for chances in tried]
        best = int(np.argmin(errors))
        survives = tried[best]
        temperatures.append(float(TEMPERATURES[best]))
        before.append(calibration_error(raw, reached[:, place]))
        after.append(errors[best])
    return Calibration(temperatures, before, after, len(scores))


def calibration_error(chances: Float64, happened: Float64) -> float:
    """Expected calibration error over bins of one width, weighted by how many fall into each."""
    bins = np.minimum((chances * NUM_BINS).astype(np.int64), NUM_BINS - 1)
    difference = np.bincount(bins, weights=chances - happened, minlength=NUM_BINS)
    return float(np.abs(difference).sum() / len(chances))


def read_temperatures(path: Path, num_drafts: int) -> list[float]:
    """The temperatures of a file, one a place: SGLang's object, or a bare list. Raises BadCalibration."""
    try:
        held: object = json.loads(path.read_bytes())
    except (OSError, ValueError) as error:
        raise BadCalibration(f"{path} holds no temperatures: {error}") from error
    values = held.get("temperatures") if isinstance(held, dict) else held
    if not isinstance(values, list) or not all(_is_temperature(value) for value in values):
        raise BadCalibration(f"{path} holds no temperatures: a list of numbers above 0 is expected.")
    if len(values) != num_drafts:
        raise BadCalibration(f"{path} holds temperatures of {len(values)} places, and {num_drafts} are drafted.")
    return [float(value) for value in values]


def _is_temperature(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < float("inf")


def _sigmoid(values: Float64) -> Float64:
    return np.asarray(np.clip(1 / (1 + np.exp(-values)), _TINY, 1 - _TINY), np.float64)
