"""Lets the tests of this folder import `small`; a target, and a draft that was trained for it."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture(scope="session")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from small import write_target

    return write_target(tmp_path_factory.mktemp("target"))


@pytest.fixture(scope="session")
def trained(target: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    from small import SMALL, STEPS

    from corymb.serve import draft_command

    out = tmp_path_factory.mktemp("draft")
    assert draft_command.run(["train", str(target), "--out", str(out), *SMALL, *STEPS]) == 0
    return out
