"""What one server wrote to files another finds there, exactly: conversations on models that read back what is in the
pools."""

from collections.abc import Callable
from pathlib import Path
from threading import Event

import pytest
from by_loop import FakePort, serve_rounds
from talks import EVERYTHING, NUM_TOKENS, ask, cached, conversations, says, toy_folder

from corymb.cache.block_files import BlockFiles
from corymb.cache.cache import Cache
from corymb.cache.storage import Storage
from corymb.models.build import Built, RunnerOptions, build
from corymb.models.fingerprint import fingerprint
from corymb.models.second_tier import SecondTier
from corymb.models.toy_folders import write_toy
from corymb.scheduler import prefetching
from corymb.serve.config import from_flags
from corymb.serve.flags import parser
from corymb.serve.storage import fingerprint_of

MODELS = ["hash-sliding", "hash-recurrent", "hash-hybrid"]
BLOCK_TOKENS = 8


class Servers:
    """One server after another over one folder of files."""

    def __init__(self, folder: Path, model: str, files: Path, **options: object) -> None:
        self.folder, self.model, self.files = folder, model, files
        states = {"state_interval": 4} if model != "hash-sliding" else {}
        self.options = {"max_total_tokens": 4096, "second_tier": SecondTier()} | states | options

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


@pytest.mark.parametrize("policy", ["best_effort", "timeout", "wait_complete"])
def test_who_waits_for_a_slow_disk(tmp_path: Path, policy: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model, may_read = "hash-sliding", Event()
    folder = tmp_path / "model"
    folder.mkdir()
    toy_folder(folder, model)
    prompt = b"be brief and kind, " * 3
    Servers(folder, model, tmp_path / "files").ask([prompt])
    read = BlockFiles.read

    def slow_read(files: BlockFiles, name: str) -> memoryview | None:
        may_read.wait()
        return read(files, name)

    def release_when_others_are_done(cache: Cache) -> None:
        if policy == "wait_complete" and cache.tree.num_nodes and not cache.leases:
            may_read.set()

    monkeypatch.setattr(BlockFiles, "read", slow_read)
    monkeypatch.setattr(prefetching, "PATIENCE_S", 0.05)
    servers = Servers(folder, model, tmp_path / "files", hicache_storage_prefetch_policy=policy)
    follow_up = prompt + says(prompt, NUM_TOKENS, model) + b" and?"
    (port,) = servers.ask([follow_up, b"somebody else"], after_step=release_when_others_are_done)
    may_read.set()
    found = len(prompt) + NUM_TOKENS - 1 if policy == "wait_complete" else 0
    assert cached(port) == [found, 0]


def test_patience_grows_with_what_is_read_and_has_an_end() -> None:
    assert prefetching.patience_s("best_effort", 1 << 20) == 0
    assert prefetching.patience_s("timeout", 4096) == 2.0
    assert prefetching.patience_s("timeout", 1 << 20) == 30.0
    assert prefetching.patience_s("wait_complete", 1) == float("inf")


def test_damaged_files_cost_the_hits_and_nothing_else(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    model = "hash-hybrid"
    folder, files = tmp_path / "model", tmp_path / "files"
    folder.mkdir()
    servers = Servers(toy_folder(folder, model), model, files)
    first, second, _ = conversations(model)
    servers.ask(first)
    for path in files.iterdir():
        path.write_bytes(path.read_bytes()[:-1])
    servers.ask(second)
    assert servers.cache.host is not None
    assert servers.cache.host.moved.restored["full"] == 0
    assert len([record for record in caplog.records if record.levelname == "WARNING"]) == 1


def test_whatever_changes_contents_changes_the_fingerprint(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    write_toy("corymb/hash", folder)
    weights = folder / "model.safetensors"
    weights.write_bytes(b"header" + bytes(1000))
    seen = [fingerprint(folder)]
    content = weights.read_bytes()
    weights.write_bytes(content[:-1] + b"\1")
    seen.append(fingerprint(folder))
    weights.write_bytes(content)
    assert fingerprint(folder) == seen[0]
    (folder / "config.json").write_text((folder / "config.json").read_text() + " ")
    seen.append(fingerprint(folder))
    seen.append(fingerprint(folder, with_weights=False))
    assert len(set(seen)) == len(seen)


def test_names_depend_on_model_page_size_and_types(tmp_path: Path) -> None:
    names = set()
    variants = [
        ("hash", []),
        ("hash", ["--page-size", "4"]),
        ("hash", ["--load-format", "dummy"]),
        ("hash-sliding", []),
    ]
    for index, (model, more) in enumerate(variants):
        folder = tmp_path / str(index)
        folder.mkdir()
        write_toy(f"corymb/{model}", folder)
        flags = ["--enable-hierarchical-cache", "--hicache-storage-backend", "file", "--max-total-tokens", "4096"]
        config = from_flags(parser("serve").parse([str(folder), *flags, "--hicache-storage-dir", str(tmp_path), *more]))
        built = build(
            RunnerOptions(folder, page_size=config.memory.page_size, max_total_tokens=4096, second_tier=SecondTier()),
            lambda *_: None,
        )
        assert built.host is not None
        names.add(fingerprint_of(config, folder, built, built.host.layout))
        built.runner.close()
    assert len(names) == len(variants)
