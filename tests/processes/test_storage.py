"""Whole servers, one after another, over one folder of files: what they find, what they wait for, and what breaks."""

import os
import re
import shutil
import subprocess

import pytest

NUM_PREFIX = 8000
NUM_TOKENS = 16
BLOCK_TOKENS = 256
WHOLE = NUM_PREFIX - NUM_PREFIX % BLOCK_TOKENS  # of the prefix, in whole blocks
NUM_BLOCKS = WHOLE // BLOCK_TOKENS
PROMPT = ("a beginning that many questions share, " * 220)[:NUM_PREFIX]
FLAGS = ("--enable-hierarchical-cache", "--max-total-tokens", "20000", "--chunked-prefill-size", "2048")
SLOW_READS = ("--test-failpoint", "scheduler.slow_read_s=0.2")  # 6 s in all, where patience lasts 3 s
SLOW_WRITES = ("--test-failpoint", "scheduler.slow_write_s=0.03")


@pytest.fixture(scope="module")
def written(serving, tmp_path_factory):
    """A folder where a server left PROMPT. It was flushed while it wrote that, and killed while it wrote another."""
    folder = tmp_path_factory.mktemp("storage") / "files"
    with serving("corymb/hash", *flags(folder), *SLOW_WRITES) as server:
        assert ask(server, PROMPT) == 0
        # Nothing else is asked: what was computed gets to the disk all the same.
        server.wait_for(lambda: num_files(folder) > 2, 20)
        assert server.client.post("/flush_cache").status_code == 200
        assert num_files(folder) >= NUM_BLOCKS, "the sequence that was being written is whole"
        assert ask(server, PROMPT + " what now?") == WHOLE, "flushing leaves files alone"
        before = num_files(folder)
        assert ask(server, "x" + PROMPT) == 0
        server.wait_for(lambda: num_files(folder) > before + 2, 20)
        for process in [*server.children.values(), server.process]:
            process.kill()
    assert num_files(folder) < before + NUM_BLOCKS, "it was not killed while it wrote"
    return folder


@pytest.fixture(scope="module")
def small_disk(tmp_path_factory):
    """A folder with room for a few files."""
    folder = tmp_path_factory.mktemp("small")
    mount = ["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(folder)]
    if os.geteuid() or subprocess.run(mount, check=False, capture_output=True).returncode:
        pytest.skip("a small disk cannot be mounted here")
    yield folder
    subprocess.run(["umount", "--lazy", str(folder)], check=True)


def flags(folder, policy="wait_complete"):
    where = "--hicache-storage-backend", "file", "--hicache-storage-dir", str(folder)
    return *FLAGS, *where, "--hicache-storage-prefetch-policy", policy


def num_files(folder):
    return sum(path.suffix == ".full" for path in folder.iterdir()) if folder.exists() else 0


def says(prompt, num_tokens):
    """What corymb/hash says, in plain Python."""
    token_ids = list(prompt.encode())
    total = sum((i + 1) * (token * 40503 % 65521) for i, token in enumerate(token_ids))
    for _ in range(num_tokens):
        token_ids.append(97 + (total % 65521 >> 5) % 26)
        total += len(token_ids) * (token_ids[-1] * 40503 % 65521)
    return bytes(token_ids[len(prompt) :]).decode()


def ask(server, prompt, **options):
    """The answer, which is checked, and how many tokens of the prompt were cached."""
    body = {"prompt": prompt, "max_tokens": NUM_TOKENS, "temperature": 0} | options
    answer = server.client.post("/v1/completions", json=body).json()
    assert answer["choices"][0]["text"] == says(prompt, NUM_TOKENS)
    return answer["usage"]["prompt_tokens_details"]["cached_tokens"]


def metric(server, name, **labels):
    wanted = "".join(f'.*{key}="{value}"' for key, value in labels.items())
    exposed = server.client.get("/metrics").text
    return float(re.search(rf"^corymb_{name}{{{wanted}.*}} (\S+)$", exposed, re.MULTILINE)[1])


def warnings_of(server):
    return re.findall(r"The cache's folder .* Further such failures are only counted.", server.log)


def test_after_a_restart_the_first_request_hits_and_what_cannot_be_read_is_computed(serving, written, tmp_path):
    folder = shutil.copytree(written, tmp_path / "files")
    with serving("corymb/hash", *flags(folder)) as server:
        assert ask(server, PROMPT + " what now?") == WHOLE
        assert metric(server, "storage_loaded_tokens_total", pool="full") == WHOLE
        assert ask(server, PROMPT, cache_salt="another tenant's") == 0
        assert metric(server, "storage_failures_total", direction="loaded") == 0
        for path in folder.glob("*.full"):
            path.unlink()
            path.mkdir()  # even root cannot read it
        server.client.post("/flush_cache")
        assert ask(server, PROMPT + " what now?") == 0
        server.wait_for(lambda: metric(server, "storage_failures_total", direction="loaded") > 0, 20)
        assert len(warnings_of(server)) == 1
        assert "cannot be read" in server.log


@pytest.mark.parametrize(("policy", "least", "most"), [("best_effort", 0, 0), ("timeout", BLOCK_TOKENS, WHOLE - 1)])
def test_who_does_not_wait_for_a_slow_disk_to_the_end(serving, written, tmp_path, policy, least, most):
    folder = shutil.copytree(written, tmp_path / "files")
    with serving("corymb/hash", *flags(folder, policy), *SLOW_READS) as server:
        assert least <= ask(server, PROMPT + " what now?") <= most


def test_a_full_disk_costs_hits_and_one_warning(serving, small_disk):
    with serving("corymb/hash", *flags(small_disk), "--hicache-storage-size", "1") as server:
        assert ask(server, PROMPT) == 0
        server.wait_for(lambda: metric(server, "storage_failures_total", direction="stored") > 1, 20)
        assert len(warnings_of(server)) == 1
        assert "No space left on device" in server.log
        assert ask(server, PROMPT + " what now?") == NUM_PREFIX
