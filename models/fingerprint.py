"""What tells a model's contents from those of every other. Imports no torch."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path

WEIGHTS = (".safetensors", ".gguf")
PIECE_BYTES = 64 << 20


@dataclass(frozen=True, slots=True)
class _Piece:
    path: Path
    begin: int

    def digest(self) -> bytes:
        with self.path.open("rb") as file:
            file.seek(self.begin)
            return blake2b(file.read(PIECE_BYTES), digest_size=32).digest()


def fingerprint(folder: Path, *, with_weights: bool = True) -> bytes:
    """A digest of a model's configuration and of every byte of its weights: fine-tuned weights have the names and sizes
    of those that they were made from. Reads with all cores. Raises OSError."""
    digest = blake2b((folder / "config.json").read_bytes(), digest_size=32)
    files = sorted(path for path in folder.iterdir() if path.suffix in WEIGHTS) if with_weights else []
    with ThreadPoolExecutor() as pool:
        for each in pool.map(_Piece.digest, _pieces(files)):
            digest.update(each)
    return digest.digest()


def _pieces(files: list[Path]) -> Iterator[_Piece]:
    for path in files:
        yield from (_Piece(path, begin) for begin in range(0, path.stat().st_size, PIECE_BYTES))
