"""The fit of confidence, and what is reported of rounds."""

import numpy as np
import pytest

from corymb.speculative.calibration import TEMPERATURES, error_of, errors_of, fit, logit, scaled, sigmoid
from corymb.speculative.rounds import Rounds, report


@pytest.mark.parametrize("true", [(1.0, 1.0, 1.0), (2.0, 0.5, 3.0)])
def test_the_fit_finds_the_temperatures_that_confidence_was_spoilt_with(true: tuple[float, ...]) -> None:
    random = np.random.default_rng(3)
    logits = random.normal(1.0, 2.0, (40_000, 3))
    accepted = random.random((40_000, 3)) < sigmoid(logits)
    spoilt = sigmoid(logits * np.array(true))
    prefixes = accepted.cumprod(axis=1).astype(np.float64)
    found = fit(logit(spoilt), prefixes)
    step = TEMPERATURES[1] / TEMPERATURES[0]
    ratios = np.array(found.temperatures) / np.array(true)
    assert ((ratios < step**1.5) & (ratios > step**-1.5)).all(), found.temperatures
    assert max(found.ece_after) < 0.02
    assert all(after <= before + 1e-3 for before, after in zip(found.ece_before, found.ece_after, strict=True))
    assert np.allclose(errors_of(scaled(spoilt, np.array(found.temperatures)), prefixes), found.ece_after)


def test_the_error_is_the_distance_between_what_was_said_and_what_came() -> None:
    said = np.array([0.9, 0.9, 0.9, 0.9, 0.1, 0.1])
    came = np.array([1.0, 1.0, 0.0, 0.0, 0.0, 0.0])
    assert error_of(said, came) == pytest.approx((4 * 0.4 + 2 * 0.1) / 6)
    assert error_of(np.array([1.0, 0.0]), np.array([1.0, 0.0])) == 0


def test_a_report_counts_by_place_and_by_kind() -> None:
    rounds = Rounds(["code", "chat", "code", "chat"], np.array([3, 0, 1, 2], np.int32), None)
    told = report(rounds, 3)
    assert told["accept_length"] == 2.5
    assert told["survival"] == [0.75, 0.5, 0.25]
    assert told["conditional_acceptance"] == [0.75, 0.6667, 0.5]
    assert told["accept_length_by_kind"] == {"chat": 2.0, "code": 3.0}
    assert told["rounds_by_kind"] == {"chat": 2, "code": 2}
