"""The layer rule: imports point down, cache and scheduler know no torch, and every layer is packaged."""

import ast
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
ALLOWED = {
    "cache": set(),
    "kernels": set(),
    "scheduler": {"cache"},
    "models": {"kernels", "cache", "scheduler"},
    "speculative": {"kernels", "cache", "scheduler", "models"},
    "serve": {"kernels", "cache", "scheduler", "models", "speculative"},
}
# Of the scheduler, the runner may see only what crosses to it.
NARROW = {("models", "scheduler"): {"corymb.scheduler.plan", "corymb.scheduler.messages"}}
WITHOUT_TORCH = ("cache", "scheduler")
BANNED = {"pickle", "dill", "cloudpickle", "marshal", "shelve"}
BANNED_CALLS = {"eval", "exec", "compile", "__import__"}


def imports(path: Path) -> set[str]:
    """Full names of the modules that a file imports."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            found.add(str(node.module))
    return found


@pytest.mark.parametrize("layer", ALLOWED)
def test_imports_point_down(layer: str) -> None:
    for path in (ROOT / layer).glob("*.py"):
        for name in imports(path):
            if not name.startswith("corymb."):
                continue
            target = name.split(".")[1]
            assert target == layer or target in ALLOWED[layer], f"{path} imports {name}"
            narrow = NARROW.get((layer, target))
            assert narrow is None or name in narrow, f"{path} imports {name}; allowed: {sorted(narrow or ())}"


@pytest.mark.parametrize("layer", WITHOUT_TORCH)
def test_layer_never_imports_torch(layer: str) -> None:
    for path in (ROOT / layer).glob("*.py"):
        assert not {name.split(".")[0] for name in imports(path)} & {"torch", "transformers", "triton"}, path


def test_nothing_executes_data() -> None:
    for layer in (*ALLOWED, "benchmarks"):
        for path in (ROOT / layer).glob("*.py"):
            assert not {name.split(".")[0] for name in imports(path)} & BANNED, path
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
                    assert node.func.id not in BANNED_CALLS, f"{path}:{node.lineno}"


def test_every_layer_is_packaged() -> None:
    config = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]
    layers = {path.parent.name for path in ROOT.glob("*/__init__.py")}
    assert layers == set(ALLOWED)
    assert set(config["packages"]) == {f"corymb.{layer}" for layer in layers}
    assert config["package-dir"] == {f"corymb.{layer}": layer for layer in layers}


def test_layers_are_flat() -> None:
    for layer in ALLOWED:
        assert list((ROOT / layer).glob("*/*.py")) == []
