"""Writes tokenizer.json for a model that has only a slow tokenizer: `slow_tokenizer.py FOLDER TARGET`."""

import sys
from pathlib import Path

from transformers import AutoTokenizer


def main(folder: Path, target: Path) -> None:
    """Converts; transformers says what is wrong if it cannot."""
    tokenizer = AutoTokenizer.from_pretrained(
        str(folder), use_fast=True, local_files_only=True, trust_remote_code=False
    )
    tokenizer.backend_tokenizer.save(str(target / "tokenizer.json"))


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
