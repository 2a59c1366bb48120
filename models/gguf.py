"""Converts a GGUF file into a folder that any loader of Hugging Face checkpoints can read."""

import json
import shutil
from pathlib import Path
from typing import Any

from corymb.models.errors import SourceError
from corymb.models.gguf_config import GgufModel, config, generation_config, known_model
from corymb.models.gguf_file import read_gguf
from corymb.models.gguf_tensors import weight_dtype, weights_size_bytes, write_weights
from corymb.models.gguf_tokenizer import build_tokenizer, tokenizer_config
from corymb.models.progress import OnProgress, silent

# Part of the cache's key: raise it when a change here makes folders that were converted before wrong.
CONVERTER_VERSION = 1


def convert_gguf(path: Path, folder: Path, on_progress: OnProgress = silent) -> None:
    """Fills the empty `folder` with config, tokenizer and weights; raises SourceError with what is wrong."""
    model = known_model(read_gguf(path))
    _check_space(model, folder)
    metadata = model.file.metadata
    tokenizer = build_tokenizer(path, metadata)
    _write_json(folder / "config.json", config(model, weight_dtype(model)))
    _write_json(folder / "generation_config.json", generation_config(metadata))
    _write_json(folder / "tokenizer_config.json", tokenizer_config(path, metadata))
    tokenizer.save(str(folder / "tokenizer.json"), pretty=False)
    write_weights(model, folder / "model.safetensors", on_progress, f"Converting {path.name}")


def _check_space(model: GgufModel, folder: Path) -> None:
    needed, free = weights_size_bytes(model), shutil.disk_usage(folder).free
    if needed > free:
        sizes = f"{needed / 2**30:.1f} GiB in {folder}, where {free / 2**30:.1f} GiB are free"
        raise SourceError(f"Converting {model.file.path.name} needs {sizes}.")


def _write_json(path: Path, value: Any) -> None:
    path.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
