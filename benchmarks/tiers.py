"""Measures the time to the first token of a long prefix that is computed, or comes from the device, the host, or files.

python benchmarks/tiers.py --tokens 8128                                      # the demo model; takes 8,192 in all
python benchmarks/tiers.py --tokens 8192 -- MODEL --load-format dummy --device cuda
"""

import argparse
import json
import os
import random
import re
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from pathlib import Path

from record import record

START_TIMEOUT_S = 600
LEAST_ID, MOST_ID = 20, 250  # of random tokens: every vocabulary has them, and they are nothing special


class Server:
    """A server with three tiers, whose device has room for one and a half prefixes."""

    def __init__(self, options: argparse.Namespace, files: Path) -> None:
        with socket.socket() as sock:
            sock.bind(("127.0.0.1", 0))
            self.port = sock.getsockname()[1]
        tiers = [
            "--enable-hierarchical-cache",
            "--hicache-ratio",
            "4",
            "--max-total-tokens",
            str(options.tokens * 3 // 2),
        ]
        tiers += ["--hicache-storage-backend", "file", "--hicache-storage-dir", str(files)]
        tiers += ["--hicache-storage-prefetch-policy", "wait_complete", "--max-running-requests", "4"]
        command = [sys.executable, "-P", "-m", "corymb.serve", *options.arguments, *tiers, "--port", str(self.port)]
        self._process = subprocess.Popen(command)

    def __enter__(self) -> "Server":
        deadline_s = time.monotonic() + START_TIMEOUT_S
        while not self._ready():
            if self._process.poll() is not None or time.monotonic() > deadline_s:
                sys.exit("the server did not start")
            time.sleep(0.1)
        return self

    def __exit__(self, *_: object) -> None:
        self._process.terminate()
        self._process.wait()

    def _ready(self) -> bool:
        try:
            return bool(self._get("/health"))
        except (urllib.error.URLError, ConnectionError):
            return False

    def _get(self, path: str) -> str:
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}{path}", timeout=60) as response:
            return str(response.read().decode()) or "ok"

    def post(self, path: str, body: dict[str, object]) -> dict[str, object]:
        """The answer."""
        url, content = f"http://127.0.0.1:{self.port}{path}", json.dumps(body).encode()
        request = urllib.request.Request(url, content, {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=600) as response:  # noqa: S310
            return dict(json.load(response))

    def metric(self, name: str, label: str = "") -> float:
        """The sum over those with this label."""
        found = re.findall(rf"^corymb_{name}(?:{{.*{label}.*}})? (\S+)$", self._get("/metrics"), re.MULTILINE)
        return sum(map(float, found))

    def first_token_s(self, token_ids: list[int], *, cached: int) -> float:
        """Seconds to one token. Exits where another number of tokens was cached than should have been."""
        begun_s = time.perf_counter()
        answer = self.post(
            "/generate", {"input_ids": token_ids, "sampling_params": {"max_new_tokens": 1, "temperature": 0}}
        )
        seconds = time.perf_counter() - begun_s
        found = answer["meta_info"]["cached_tokens"]  # type: ignore[index]
        if found != cached:
            sys.exit(f"{found} tokens were cached instead of {cached}: this would measure something else")
        return seconds

    def settle(self) -> None:
        """Waits until all is written."""
        before = -1.0
        while (now := self.metric("storage_used_bytes")) != before or not now:
            before = now
            time.sleep(1.5)  # figures come once a second

    def drop_memory(self) -> None:
        """Leaves nothing but files."""
        self.settle()
        self.post("/flush_cache", {})


def main() -> None:
    """One prefix after another through all tiers."""
    options = parse()
    chooser = random.Random(1)
    with tempfile.TemporaryDirectory(dir=options.dir) as folder, Server(options, Path(folder)) as server:
        measured: dict[str, list[float]] = {name: [] for name in ("computed", "device", "host", "files", "disk")}
        server.first_token_s(tokens(chooser, 64), cached=0)
        for _ in range(options.repeats):
            for name, seconds in measure(server, chooser, options.tokens, Path(folder)):
                measured[name].append(seconds)
                print(f"{name:10} {seconds * 1000:10.1f} ms", flush=True)
        for name, values in measured.items():
            what = {"tier": name, "tokens": options.tokens, "arguments": " ".join(options.arguments)}
            record(options.record, "ttft_ms_p50", statistics.median(values) * 1000, "ms", **what)
        for direction in ("stored", "loaded"):
            num_bytes, seconds = (
                server.metric(f"storage_{name}_total", f'direction="{direction}"')
                for name in ("copied_bytes", "seconds")
            )
            what = {"direction": direction, "arguments": " ".join(options.arguments)}
            record(options.record, "storage_gb_s", num_bytes / seconds / 1e9, "GB/s", **what)


def parse() -> argparse.Namespace:
    """Reads the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, default=8128, help="of the prefix")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--dir", help="where files go (default: the system's folder for temporary ones)")
    parser.add_argument("--record", default="tiers", help="name of the file in benchmarks/results")
    parser.add_argument("arguments", nargs="*", metavar="ARGUMENT", help="of serve")
    return parser.parse_args()


def measure(server: Server, chooser: random.Random, num_tokens: int, folder: Path) -> list[tuple[str, float]]:
    """Names of tiers and seconds: the same prefix with another last token every time."""
    prefix = tokens(chooser, num_tokens)

    def go_on() -> float:
        return server.first_token_s([*prefix, *tokens(chooser, 1)], cached=num_tokens)

    found = [("computed", server.first_token_s(prefix, cached=0)), ("device", go_on())]
    found.append(
        ("computed", server.first_token_s(tokens(chooser, num_tokens), cached=0))
    )  # and takes the first's room
    before = server.metric("host_loaded_tokens_total")
    found.append(("host", go_on()))
    time.sleep(1.5)  # figures come once a second
    if server.metric("host_loaded_tokens_total") == before:
        sys.exit("nothing came from the host")
    server.drop_memory()
    found.append(("files", go_on()))  # as the system's memory has them
    server.drop_memory()
    forget(folder)
    found.append(("disk", go_on()))
    server.drop_memory()
    return found


def tokens(chooser: random.Random, count: int) -> list[int]:
    """Random ids."""
    return [chooser.randrange(LEAST_ID, MOST_ID) for _ in range(count)]


def forget(folder: Path) -> None:
    """Has the system's memory drop the files."""
    for path in folder.iterdir():
        with path.open("rb") as file:
            os.fsync(file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


if __name__ == "__main__":
    main()
