"""Sequential temperature scaling: what a draft's confidence is worth, place by place.

Confidence c is right where, of all drafts that have it, a share of c is accepted. What a scheduler needs is the product
along the block: each place gets a temperature under which the product up to there fits best, those before it fixed.
"""

import json
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

Float = NDArray[np.float64]

CALIBRATION = "sts.json"  # beside a draft's weights
NUM_BINS = 15
TEMPERATURES = np.logspace(-1, 1, 41)
_LEAST = 1e-8


class BadCalibration(ValueError):
    """A file holds no temperatures that fit; the message says why."""


@dataclass(frozen=True, slots=True)
class Calibration:
    """Temperatures [G], and the error of products with them and without."""

    temperatures: list[float]
    ece_before: list[float]
    ece_after: list[float]


@dataclass(frozen=True, slots=True)
class Scales:
    """What a confidence's logits are divided by, a number a place."""

    usual: tuple[float, ...]
    by_heat: dict[float, tuple[float, ...]] = field(default_factory=dict)  # of requests with that sampling temperature

    def of(self, heat: float) -> tuple[float, ...]:
        """Those fitted nearest to a sampling temperature."""
        if not self.by_heat:
            return self.usual
        return self.by_heat[min(self.by_heat, key=lambda fitted: abs(fitted - heat))]


def fit(logits: Float, prefixes: Float) -> Calibration:
    """Fits temperatures to N blocks: logits of their confidence [N, G], and 1 where a draft and all before it were
    accepted."""
    survival = np.ones(len(logits))
    temperatures = []
    for place in range(logits.shape[1]):
        errors = [error_of(survival * sigmoid(logits[:, place] / heat), prefixes[:, place]) for heat in TEMPERATURES]
        temperatures.append(TEMPERATURES[int(np.argmin(errors))])
        survival = survival * sigmoid(logits[:, place] / temperatures[-1])
    found = [float(heat) for heat in temperatures]
    before, after = errors_of(sigmoid(logits), prefixes), errors_of(sigmoid(logits / np.array(found)), prefixes)
    return Calibration(found, before.tolist(), after.tolist())


def scaled(confidence: Float, temperatures: Float) -> Float:
    """Confidence [N, G] under temperatures [G]."""
    return sigmoid(logit(confidence) / temperatures)


def errors_of(confidence: Float, prefixes: Float) -> Float:
    """The error of products up to each place, [G]."""
    products = confidence.cumprod(axis=1)
    return np.array([error_of(products[:, place], prefixes[:, place]) for place in range(products.shape[1])])


def error_of(predicted: Float, happened: Float) -> float:
    """The expected calibration error: over equal bins, how far a bin's mean prediction is from what happened in it."""
    bins = np.minimum((predicted * NUM_BINS).astype(np.int64), NUM_BINS - 1)
    gaps = np.bincount(bins, predicted, NUM_BINS) - np.bincount(bins, happened, NUM_BINS)
    return float(np.abs(gaps).sum() / len(predicted))


def logit(chances: Float) -> Float:
    """The inverse of `sigmoid`."""
    inside = np.clip(chances, _LEAST, 1 - _LEAST)
    found: Float = np.log(inside) - np.log1p(-inside)
    return found


def sigmoid(logits: Float) -> Float:
    """1 / (1 + exp(-x))."""
    found: Float = 1 / (1 + np.exp(-logits))
    return found


def read_temperatures(path: Path, num_drafts: int) -> Scales:
    """The temperatures of a file, one a place, of which the first `num_drafts` count: SGLang's object, or a bare list;
    with `by_temperature` those of sampling temperatures, too. Raises BadCalibration."""
    try:
        held: object = json.loads(path.read_bytes())
    except (OSError, ValueError) as error:
        raise BadCalibration(f"{path} holds no temperatures: {error}") from error
    if not isinstance(held, dict):
        return Scales(_temperatures(held, path, num_drafts))
    by_heat = held.get("by_temperature", {})
    if not isinstance(by_heat, dict) or not all(_is_heat(name) for name in by_heat):
        raise BadCalibration(f"{path}: by_temperature must be an object whose names are sampling temperatures.")
    return Scales(
        _temperatures(held.get("temperatures"), path, num_drafts),
        {float(name): _temperatures(values, path, num_drafts) for name, values in by_heat.items()},
    )


def _temperatures(values: object, path: Path, num_drafts: int) -> tuple[float, ...]:
    if not isinstance(values, list) or not all(_is_temperature(value) for value in values):
        raise BadCalibration(f"{path} holds no temperatures: a list of numbers above 0 is expected.")
    if len(values) < num_drafts:
        raise BadCalibration(f"{path} holds temperatures of {len(values)} places, and {num_drafts} are drafted.")
    return tuple(float(value) for value in values[:num_drafts])


def _is_heat(name: str) -> bool:
    try:
        return 0 <= float(name) < float("inf")
    except ValueError:
        return False


def _is_temperature(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < float("inf")
