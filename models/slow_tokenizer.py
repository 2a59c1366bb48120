"""Writes tokenizer.json for a model that has only a slow tokenizer: `slow_tokenizer.py FOLDER TARGET`."""

import sys
from importlib.util import find_spec
from pathlib import Path

from transformers import AutoTokenizer

_SENTENCEPIECE_NEEDS = ("sentencepiece", "google.protobuf")


def main(folder: Path, target: Path) -> None:
    """Converts; transformers says what is wrong if it cannot."""
    if (folder / "tokenizer.model").is_file() and not all(map(_is_installed, _SENTENCEPIECE_NEEDS)):
        sys.exit("reading tokenizer.model needs two more packages: pip install sentencepiece protobuf")
    options = {"use_fast": True, "local_files_only": True, "trust_remote_code": False}
    tokenizer = AutoTokenizer.from_pretrained(str(folder), **options)
    tokenizer.backend_tokenizer.save(str(target / "tokenizer.json"))


def _is_installed(name: str) -> bool:
    try:
        return find_spec(name) is not None
    except ModuleNotFoundError:  # of the package around it
        return False


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
