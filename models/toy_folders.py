"""Model folders for the toys: a config and the byte tokenizer, no weights."""

import json
from pathlib import Path
from typing import Any

# The tokenizer class that `serve.tokenizer` takes as a request for its byte tokenizer.
BYTE_TOKENIZER = "CorymbBytes"
VOCAB_SIZE = 264
EOS_IDS = (257, 259)
WINDOW = 32


def _config(architecture: str, **fields: Any) -> dict[str, Any]:
    return fields | {
        "architectures": [architecture],
        "model_type": "corymb_toy",
        "vocab_size": VOCAB_SIZE,
        "bos_token_id": 256,
        "eos_token_id": list(EOS_IDS),
        "max_position_embeddings": 1 << 17,
    }


TOYS = {
    "corymb/tape": _config("CorymbTape"),
    "corymb/hash": _config("CorymbHash"),
    "corymb/hash-sliding": _config("CorymbHash", sliding_window=WINDOW),
    "corymb/hash-recurrent": _config("CorymbHash", recurrent=True),
    "corymb/hash-hybrid": _config("CorymbHash", sliding_window=WINDOW, recurrent=True),
    "corymb/uniform": _config("CorymbUniform"),
}


def write_toy(name: str, folder: Path) -> None:
    """Fills the folder of one toy."""
    ends = {key: TOYS[name][key] for key in ("bos_token_id", "eos_token_id")}
    _write(folder / "config.json", TOYS[name])
    _write(folder / "generation_config.json", ends)
    write_byte_tokenizer(folder)


def write_byte_tokenizer(folder: Path) -> None:
    """Marks the folder as one that uses the byte tokenizer."""
    _write(folder / "tokenizer_config.json", {"tokenizer_class": BYTE_TOKENIZER})


def _write(path: Path, value: Any) -> None:
    path.write_text(json.dumps(value, indent=2) + "\n", encoding="utf-8")
