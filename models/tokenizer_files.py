"""Sees to it that a model folder has a tokenizer which can be read without transformers."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from corymb.models.errors import SourceError
from corymb.models.store import digest, prepare
from corymb.models.toy_folders import BYTE_TOKENIZER, VOCAB_SIZE, write_byte_tokenizer

_SLOW = ("tokenizer.model", "spiece.model", "vocab.json", "vocab.txt", "tiktoken.model")
_CONVERSION_LIMIT_S = 300


def with_tokenizer(folder: Path, cache_dir: Path, *, weights: bool) -> Path:
    """Returns `folder`, or a folder of the model cache that links to its files and adds the tokenizer it lacks."""
    if (folder / "tokenizer.json").is_file() or _names_byte_tokenizer(folder):
        return folder
    if any((folder / name).is_file() for name in _SLOW):
        return _linked(folder, cache_dir, "tokenizer", lambda copy: _convert(folder, copy))
    if not weights and _vocab_size(folder) >= VOCAB_SIZE:
        return _linked(folder, cache_dir, "bytes", write_byte_tokenizer)
    raise SourceError(f"{folder} has no tokenizer (tokenizer.json), so text cannot be turned into tokens.")


def _names_byte_tokenizer(folder: Path) -> bool:
    path = folder / "tokenizer_config.json"
    return path.is_file() and f'"{BYTE_TOKENIZER}"' in path.read_text(encoding="utf-8")


def _vocab_size(folder: Path) -> int:
    try:
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    except ValueError as error:
        raise SourceError(f"{folder / 'config.json'} is not valid JSON: {error}.") from error
    size = config.get("vocab_size", 0) if isinstance(config, dict) else 0
    return size if isinstance(size, int) else 0


def _linked(folder: Path, cache_dir: Path, kind: str, add: Callable[[Path], None]) -> Path:
    def fill(copy: Path) -> None:
        for path in folder.iterdir():
            if path.is_file():
                (copy / path.name).symlink_to(path.resolve())
        add(copy)

    state = [(path.name, path.stat().st_mtime_ns) for path in sorted(folder.iterdir())]
    return prepare(cache_dir, f"{folder.name}-{kind}-{digest(folder.resolve(), state)}", fill)


def _convert(folder: Path, copy: Path) -> None:
    """Lets transformers read the slow tokenizer, in a child so that this process never imports it."""
    script = Path(__file__).with_name("slow_tokenizer.py")
    command = [sys.executable, "-P", str(script), str(folder), str(copy)]
    try:
        subprocess.run(command, check=True, capture_output=True, text=True, timeout=_CONVERSION_LIMIT_S)
    except subprocess.TimeoutExpired as error:
        raise SourceError(f"The tokenizer in {folder} took over {_CONVERSION_LIMIT_S} s to convert.") from error
    except subprocess.CalledProcessError as error:
        last = (error.stderr.strip().splitlines() or ["it gave no reason"])[-1]
        raise SourceError(f"The tokenizer in {folder} cannot be converted to tokenizer.json: {last}.") from error
