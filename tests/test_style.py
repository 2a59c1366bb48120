"""Sizes and habits that no linter of ours checks."""

import ast
import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
LAYERS = ("serve", "scheduler", "cache", "kernels", "models", "speculative")
FILES = [path for layer in LAYERS for path in sorted((ROOT / layer).glob("*.py"))]
MAX_FILE_LINES = 400
MAX_FUNCTION_LINES = 80
MAX_NESTING = 5
BANNED_NAMES = {"utils", "util", "common", "core", "manager", "helper", "helpers", "misc"}


@pytest.mark.parametrize("path", FILES, ids=lambda path: f"{path.parent.name}/{path.name}")
def test_file_is_one_noun_of_readable_size(path: Path) -> None:
    text = path.read_text()
    assert text.count("\n") <= MAX_FILE_LINES, f"{path} has over {MAX_FILE_LINES} lines"
    assert not set(path.stem.split("_")) & BANNED_NAMES, path
    tree = ast.parse(text)
    assert ast.get_docstring(tree), f"{path} has no docstring"
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            lines = (node.end_lineno or node.lineno) - node.lineno
            assert lines <= MAX_FUNCTION_LINES, f"{path}:{node.lineno} {node.name} has {lines} lines"
            assert depth(node) <= MAX_NESTING, f"{path}:{node.lineno} {node.name} is nested {depth(node)} deep"


def depth(node: ast.AST) -> int:
    """How deep blocks stand inside blocks; `elif` does not count."""
    nested = (ast.If, ast.For, ast.While, ast.With, ast.Try, ast.AsyncFor, ast.AsyncWith)
    best = 0
    for child in ast.iter_child_nodes(node):
        chained = isinstance(node, ast.If) and child in node.orelse and isinstance(child, ast.If)
        step = 1 if isinstance(child, nested) and not chained else 0
        best = max(best, step + depth(child))
    return best


def test_environment_is_read_in_one_place() -> None:
    readers = [path for path in FILES if re.search(r"os\.(environ|getenv)", path.read_text())]
    assert {path.relative_to(ROOT).as_posix() for path in readers} <= {"serve/config.py"}


def test_public_functions_and_classes_are_documented() -> None:
    missing = []
    for path in FILES:
        for node in ast.parse(path.read_text()).body:
            public = isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
            if public and not node.name.startswith("_") and not ast.get_docstring(node):
                missing.append(f"{path.relative_to(ROOT)}:{node.lineno} {node.name}")
    assert missing == []


def test_no_unfinished_marks() -> None:
    marks = re.compile(r"\b(TODO|FIXME|XXX|NotImplementedError)\b")
    assert [str(path) for path in FILES if marks.search(path.read_text())] == []


def test_tracked_files_stay_small() -> None:
    names = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=False).stdout.split(
        "\n"
    )
    sizes = {name: (ROOT / name).stat().st_size for name in names if name and (ROOT / name).is_file()}
    weights = sizes.pop("speculative/smollm2_135m_instruct/model.safetensors")
    assert weights < 16 << 20
    assert [name for name, size in sizes.items() if size > 2 << 20] == []


@pytest.mark.parametrize("layer", ["serve", "scheduler", "speculative"])
def test_the_guide_to_a_layer_of_many_files_names_them_all(layer: str) -> None:
    guide = set(re.findall(r"\w+", (ROOT / layer / "__init__.py").read_text()))
    files = {path.stem for path in (ROOT / layer).glob("*.py")} - {"__init__", "__main__"}
    assert files <= guide
