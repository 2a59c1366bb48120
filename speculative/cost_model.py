"""How long a step takes, by how much is drafted and verified in it."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from corymb.speculative.correction import Correction

Float64 = NDArray[np.float64]


class BadTable(ValueError):
    """A file is not a cost table; the message says what is wrong with it."""


@dataclass(frozen=True, slots=True)
class Curve:
    """Seconds by a count: between the probes on straight lines, beyond them as at the last one."""

    probes: Float64  # rising
    seconds: Float64

    def at(self, counts: NDArray[np.integer[Any]] | int) -> Float64:
        """Seconds at each of the counts."""
        return np.asarray(np.interp(counts, self.probes, self.seconds), np.float64)


def envelope(probes: Sequence[int], seconds: Sequence[float], *, farthest: int) -> Curve:
    """The curve of measurements: more work never takes less time, and behind the last probe it goes on as it came."""
    rising = np.maximum.accumulate(np.asarray(seconds, np.float64))
    counts = np.asarray(probes, np.float64)
    if farthest > counts[-1]:
        slope = (rising[-1] - rising[-2]) / (counts[-1] - counts[-2]) if len(counts) > 1 else rising[-1] / counts[-1]
        counts = np.append(counts, farthest)
        rising = np.append(rising, rising[-1] + slope * (farthest - counts[-2]))
    return Curve(counts, rising)


class Tiers(Protocol):
    """How many tokens a step is filled up to."""

    def __call__(self, num_tokens: NDArray[np.integer[Any]]) -> NDArray[np.integer[Any]]: ...


def as_they_are(num_tokens: NDArray[np.integer[Any]]) -> NDArray[np.integer[Any]]:
    """No step is filled up."""
    return num_tokens


def filled_up_to(sizes: Sequence[int]) -> Tiers:
    """Steps are filled up to the next of the sizes; larger ones are not."""
    if not sizes:
        return as_they_are
    known = np.asarray(sizes, np.int64)

    def tier(num_tokens: NDArray[np.integer[Any]]) -> NDArray[np.integer[Any]]:
        index = np.searchsorted(known, num_tokens)
        return np.where(index < len(known), known[np.minimum(index, len(known) - 1)], num_tokens)

    return tier


@dataclass(frozen=True, slots=True)
class Took:
    """What a step took, in seconds."""

    draft_s: float | None  # None: it did not draft
    verify_s: float


@dataclass(slots=True)
class CostModel:
    """T(R, K) = overhead + draft(R) + verify(tier(R + K)) × (1 + κ · context), each curve corrected by what steps took
    lately. A step that does not draft costs no draft(R), and corrects the curve of those that do."""

    overhead_s: float
    draft: Curve
    verify: Curve
    tier: Tiers = as_they_are
    context_share: float = 0.0  # κ, a token of mean context
    verify_holds_all: bool = False  # `verify` was measured with the drafting in it
    _drafting: Correction = field(default_factory=Correction)  # by rows
    _verifying: Correction = field(default_factory=Correction)  # by tier

    def step_s(self, num_rows: int, num_drafts: NDArray[np.integer[Any]], context: float, *, drafts: bool) -> Float64:
        """Seconds of steps that verify `num_drafts` [N] each behind the tokens of `num_rows` rows."""
        tiers = self.tier(num_rows + num_drafts)
        verify = self.verify.at(tiers) * self._verifying.at(tiers) * (1 + self.context_share * context)
        draft = self.draft.at(num_rows) * self._drafting.at(num_rows) if drafts else np.float64(0.0)
        return np.asarray(self.overhead_s + draft + verify, np.float64)

    def learn(self, num_rows: int, num_drafts: int, context: float, took: Took) -> None:
        """A step that verified so many drafts of so many rows took so long."""
        (tier,) = self.tier(np.array([num_rows + num_drafts])).tolist()
        verify_s = took.verify_s + (took.draft_s or 0.0 if self.verify_holds_all else 0.0)
        _learn(self._verifying, tier, verify_s, float(self.verify.at(tier)) * (1 + self.context_share * context))
        if took.draft_s is not None:
            _learn(self._drafting, num_rows, took.draft_s, float(self.draft.at(num_rows)))


def _learn(correction: Correction, size: int, took_s: float, measured_s: float) -> None:
    # A table may say that something costs nothing: there is no share of nothing to correct.
    if measured_s > 0 and took_s > 0:
        correction.learn(size, took_s / measured_s)


def read_table(path: Path) -> CostModel:
    """A cost table as files hold it: additive, or steps a second by tokens. Raises BadTable."""
    try:
        table = json.loads(path.read_bytes())
    except (OSError, ValueError) as error:
        raise BadTable(f"{path} is not a cost table: {error}") from error
    if not isinstance(table, dict):
        raise BadTable(f"{path} is not a cost table: it holds no object.")
    if "bias_seconds" in table:
        return _additive(table, path)
    if "sample_batch_tokens" in table:
        return _flat(table, path)
    raise BadTable(f"{path} is not a cost table: it has neither bias_seconds nor sample_batch_tokens.")


def _additive(table: dict[str, Any], path: Path) -> CostModel:
    overhead_s = table["bias_seconds"]
    if not isinstance(overhead_s, int | float) or not overhead_s > 0:
        raise BadTable(f"{path}: bias_seconds must be above 0.")
    draft = _curve(table, "bs_probes", "alpha_seconds", path)
    return CostModel(float(overhead_s), draft, _curve(table, "m_probes", "theta_seconds", path))


def _flat(table: dict[str, Any], path: Path) -> CostModel:
    rates = _curve(table, "sample_batch_tokens", "sample_steps_per_sec", path)
    if not (rates.seconds > 0).all():
        raise BadTable(f"{path}: sample_steps_per_sec must be above 0.")
    seconds = 1 / rates.seconds

    def tier(num_tokens: NDArray[np.integer[Any]]) -> NDArray[np.integer[Any]]:
        """The largest probe that is not above."""
        index = np.searchsorted(rates.probes, num_tokens, side="right") - 1
        return np.asarray(rates.probes[np.maximum(index, 0)], np.int64)

    nothing = Curve(np.array([1.0]), np.array([0.0]))
    return CostModel(0.0, nothing, Curve(rates.probes, seconds), tier=tier, verify_holds_all=True)


def _curve(table: dict[str, Any], counts: str, values: str, path: Path) -> Curve:
    try:
        probes, seconds = np.asarray(table[counts], np.float64), np.asarray(table[values], np.float64)
    except (KeyError, TypeError, ValueError) as error:
        raise BadTable(f"{path}: {counts} and {values} must be lists of numbers ({error}).") from error
    if probes.ndim != 1 or probes.shape != seconds.shape or not len(probes):
        raise BadTable(f"{path}: {counts} and {values} must have as many numbers, one at least.")
    if not (np.diff(probes) > 0).all() or not np.isfinite(seconds).all() or not (seconds >= 0).all():
        raise BadTable(f"{path}: {counts} must rise, and {values} must be finite and not negative.")
    return Curve(probes, seconds)
