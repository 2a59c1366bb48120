"""The fit of confidence, and what is reported of rounds."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from corymb.speculative.calibration import (
    TEMPERATURES,
    BadCalibration,
    error_of,
    errors_of,
    fit,
    logit,
    read_temperatures,
    scaled,
    sigmoid,
)
from corymb.speculative.draft_heads import Confidence
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


def test_rows_are_divided_by_what_was_fitted_at_their_temperature(tmp_path: Path) -> None:
    path = tmp_path / "sts.json"
    by_heat = {"0": [1.0, 2.0], "0.7": [4.0, 4.0], "1": [8.0, 8.0]}
    path.write_text(json.dumps({"temperatures": [8.0, 8.0], "by_temperature": by_heat}))
    scales = read_temperatures(path, 2)
    assert [scales.of(heat) for heat in (0.0, 0.6, 2.0)] == [(1.0, 2.0), (4.0, 4.0), (8.0, 8.0)]
    heats = torch.tensor(sorted(scales.by_heat))
    head = Confidence(torch.nn.Linear(1, 1), False, heats, torch.tensor([scales.of(float(heat)) for heat in heats]))
    chances = head.chances(torch.tensor([[2.0, 2.0]] * 3), torch.tensor([0.0, 0.7, 1.5]))
    expected = torch.tensor([[2.0, 1.0], [0.5, 0.5], [0.25, 0.25]]).sigmoid()
    assert torch.allclose(chances, expected)


@pytest.mark.parametrize("held", [[2.0, 3.0], {"temperatures": [2.0, 3.0]}], ids=["bare list", "one list"])
def test_one_list_serves_all_temperatures(tmp_path: Path, held: object) -> None:
    path = tmp_path / "sts.json"
    path.write_text(json.dumps(held))
    assert read_temperatures(path, 2).of(0.7) == (2.0, 3.0)


@pytest.mark.parametrize(
    ("by_heat", "sentence"),
    [
        ([1.0], "by_temperature must be an object"),
        ({"warm": [1.0, 1.0]}, "whose names are sampling temperatures"),
        ({"0": [1.0]}, "temperatures of 1 places, and 2 are drafted"),
        ({"0": [1.0, 0.0]}, "a list of numbers above 0 is expected"),
    ],
)
def test_a_table_by_temperature_that_does_not_fit_is_refused(tmp_path: Path, by_heat: object, sentence: str) -> None:
    path = tmp_path / "sts.json"
    path.write_text(json.dumps({"temperatures": [1.0, 1.0], "by_temperature": by_heat}))
    with pytest.raises(BadCalibration, match=sentence):
        read_temperatures(path, 2)
