"""Fixtures for all tests, and Hypothesis profiles: `everyday`, the same examples in every run, `soak`, `mutants`."""

import importlib.util
import os
import shutil
import sys
from pathlib import Path
from types import ModuleType

import pytest
from hypothesis import Phase, settings

# `pytest --hypothesis-profile=soak` draws new examples each time and prints how to replay a failure.
settings.register_profile("everyday", deadline=None, derandomize=True, max_examples=90, stateful_step_count=50)
settings.register_profile("soak", deadline=None, print_blob=True, max_examples=5500, stateful_step_count=50)
# For tests/mutants: a failure is all that is wanted, not its smallest example.
settings.register_profile("mutants", settings.get_profile("everyday"), phases=[Phase.explicit, Phase.generate])
settings.load_profile("everyday")


def _load(name: str) -> ModuleType:
    """Loads a module that lies beside this file: tests are not on the import path, where their folders would shadow."""
    spec = importlib.util.spec_from_file_location(f"corymb_tests_{name}", Path(__file__).with_name(f"{name}.py"))
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="session")
def servers() -> ModuleType:
    """The module `tests/server.py`."""
    return _load("server")


@pytest.fixture(scope="session")
def serving(servers: ModuleType):
    """Starts a whole server: `with serving("corymb/tape", "--page-size", "16") as server: …`; see `tests/server.py`."""
    return servers.serving


@pytest.fixture(scope="session")
def checkpoints() -> ModuleType:
    """The module `tests/checkpoints.py`."""
    return _load("checkpoints")


@pytest.fixture(scope="session")
def smollm2(checkpoints: ModuleType) -> Path:
    """The folder of SmolLM2-135M-Instruct; for tests marked `weights`."""
    return checkpoints.smollm2()


@pytest.fixture(scope="session")
def gemma3(checkpoints: ModuleType) -> Path:
    """The folder of Gemma 3 270M; for tests marked `weights`."""
    return checkpoints.gemma3()


@pytest.fixture(scope="session")
def promtool() -> str:
    """The path of Prometheus' checker."""
    found = shutil.which("promtool")
    if found is None:
        assert not os.environ.get("CI"), "CI installs promtool: see .ci/run"
        pytest.skip("promtool is not installed (Debian: prometheus)")
    return found
