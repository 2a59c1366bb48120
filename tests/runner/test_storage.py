"""What one server wrote to files another finds there, exactly: conversations on models that read back what is in the
pools."""

from collections.abc import Callable
from pathlib import Path

import pytest
from by_loop import FakePort, serve_rounds
from talks import EVERYTHING, NUM_TOKENS, ask, cached, conversations, says, toy_folder

from corymb.cache.block_files import BlockFiles
from corymb.cache.cache import Cache
from corymb.cache.storage import Storage
from corymb.models.build import Built
from corymb.models.second_tier import SecondTier

MODELS = ["hash-sliding", "hash-recurrent", "hash-hybrid"]
BLOCK_TOKENS = 8


class Servers:
    """One server after another over one folder of files."""

    def __init__(self, folder: Path, model: str, files: Path, **options: object) -> None:
        self.folder, self.model, self.files = folder, model, files
        states = {"state_interval": 4} if model != "hash-sliding" else {}
        self.options = {"max_total_tokens": 4096, "second_tier": SecondTier()} | states | options
        self.caches: list[Cache] = []

    def make_storage(self, built: Built) -> Storage:
        assert built.host is not None
        files = BlockFiles(self.files, None)
        size = built.cache_config.page_size
        return Storage(files, built.host.contents, b"this one", page_size=size, block_tokens=BLOCK_TOKENS)

    def ask(self, *rounds: list[bytes], after_step: Callable[[Cache], None] = lambda _: None) -> list[FakePort]:
        """A server's life: prompts, and every answer checked."""
        asked = [[ask(str(i), prompt) for i, prompt in enumerate(prompts)] for prompts in rounds]
        caches: list[Cache] = []

        def look(cache: Cache) -> None:
            caches.append(cache)
            after_step(cache)

        ports = serve_rounds(self.folder, asked, self.options, after_step=look, make_storage=self.make_storage)
        for prompts, port in zip(rounds, ports, strict=True):
            answers = [bytes(port.token_ids(str(i))) for i in range(len(prompts))]
            assert answers == [says(prompt, NUM_TOKENS, self.model) for prompt in prompts]
        self.cache = caches[-1]
        return ports


def forget(cache: Cache) -> None:
    """Nothing stays on the device, nor, where it is not being written, on the host."""
    cache.execute(cache.tree.evict({"full": EVERYTHING}))
    assert cache.host is not None
    cache.host.tier.execute(cache.host.tier.tree.evict({"full": EVERYTHING}))
    cache.check()


@pytest.mark.parametrize("page_size", [1, 4])
@pytest.mark.parametrize("model", MODELS)
def test_a_later_server_goes_on_where_the_first_one_ended(tmp_path: Path, model: str, page_size: int) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    servers = Servers(
        toy_folder(folder, model),
        model,
        tmp_path / "files",
        page_size=page_size,
        hicache_storage_prefetch_policy="wait_complete",
    )
    first, second, _ = conversations(model)
    servers.ask(first)
    (port,) = servers.ask(second)
    assert servers.cache.host is not None
    restored = servers.cache.host.moved.restored
    assert all(restored.values()), restored
    # Every fourth conversation goes on behind its last answer, whose last token nobody computed.
    ends = [len(prompt) + NUM_TOKENS - 1 for prompt in first][::4]
    assert all(0 <= end - hit < page_size for end, hit in zip(ends, cached(port)[::4], strict=True))
