"""Opens the cache's third tier."""

import json
import time
from hashlib import blake2b
from pathlib import Path

from corymb.cache.block_files import BlockFiles
from corymb.cache.storage import Storage
from corymb.models.build import Built
from corymb.models.errors import ModelError
from corymb.models.fingerprint import fingerprint
from corymb.serve.config import ServeConfig
from corymb.serve.failpoints import Failpoints
from corymb.serve.flags import installed_version


class SlowFiles(BlockFiles):
    """Files on a slow disk, for tests."""

    def __init__(self, folder: Path, max_bytes: int | None, *, read_s: float, write_s: float) -> None:
        """How much longer each file takes."""
        super().__init__(folder, max_bytes)
        self._read_s, self._write_s = read_s, write_s

    def read(self, name: str) -> memoryview | None:
        """See BlockFiles."""
        time.sleep(self._read_s)
        return super().read(name)

    def write(self, name: str, content: bytes) -> None:
        """See BlockFiles."""
        time.sleep(self._write_s)
        super().write(name, content)


def open_storage(config: ServeConfig, model_folder: Path, built: Built, failpoints: Failpoints) -> Storage | None:
    """The storage that was asked for; None without one. Reads all weights once more, for their digest. Raises
    ModelError."""
    folder, size_gb = config.memory.hicache_storage_dir, config.memory.hicache_storage_size
    if folder is None or built.host is None:
        return None
    try:
        max_bytes = None if size_gb is None else int(size_gb * 1e9)
        files = _open_files(Path(folder), max_bytes, failpoints)
        contents = fingerprint_of(config, model_folder, built, built.host.layout)
    except OSError as error:
        raise ModelError(f"--hicache-storage-dir {folder} cannot be used: {error}.") from error
    return Storage(files, built.host.contents, contents, page_size=built.cache_config.page_size)


def fingerprint_of(config: ServeConfig, model_folder: Path, built: Built, layout: str) -> bytes:
    """Of all that the contents of slots depend on, besides the tokens before them."""
    with_weights = config.model.load_format != "dummy"
    drafts = config.speculative.speculative_draft_model_path
    facts = {
        "version": installed_version(),
        "model": fingerprint(model_folder, with_weights=with_weights).hex(),
        "drafts": fingerprint(Path(drafts), with_weights=with_weights).hex() if drafts else None,
        "load_format": config.model.load_format,
        "dtype": built.dtype,
        "device": built.device,
        "page_size": built.cache_config.page_size,
        "layout": layout,
    }
    return blake2b(json.dumps(facts).encode(), digest_size=32).digest()


def _open_files(folder: Path, max_bytes: int | None, failpoints: Failpoints) -> BlockFiles:
    read_s, write_s = failpoints.slow_files
    if read_s or write_s:
        return SlowFiles(folder, max_bytes, read_s=read_s, write_s=write_s)
    return BlockFiles(folder, max_bytes)
