"""Measures the time to the first token of a long prefix that is computed, or comes from the device, the host, or files;
and how long the answers of others pause while one comes from the host, or is computed.

python benchmarks/tiers.py --tokens 8128                                      # the demo model; takes 8,192 in all
python benchmarks/tiers.py --tokens 8192 -- MODEL --load-format dummy --device cuda
"""

import argparse
import itertools
import json
import os
import random
import re
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request
from http.client import HTTPResponse
from pathlib import Path

from record import record

START_TIMEOUT_S = 600
LEAST_ID, MOST_ID = 20, 250  # of random tokens: every vocabulary has them, and they are nothing special
NUM_OTHERS = 8  # requests that run beside, each with a fortieth of the prefix's tokens to say: so all have room


class Others:
    """Requests that run meanwhile, each on a thread of its own. When their tokens came is known at the end."""

    def __init__(self, server: "Server", chooser: random.Random, num_tokens: int) -> None:
        self._num_tokens = num_tokens
        self._prompts = [tokens(chooser, 16) for _ in range(NUM_OTHERS)]
        self._came_s: list[list[float]] = [[] for _ in self._prompts]
        self._server = server
        self._threads = [threading.Thread(target=self._listen, args=(i,)) for i in range(NUM_OTHERS)]

    def __enter__(self) -> "Others":
        for thread in self._threads:
            thread.start()
        while min(map(len, self._came_s)) < self._num_tokens // 8:
            time.sleep(0.01)
        return self

    def __exit__(self, *_: object) -> None:
        for thread in self._threads:
            thread.join()

    def _listen(self, number: int) -> None:
        sampling = {"max_new_tokens": self._num_tokens, "temperature": 0, "ignore_eos": True}
        body = {"input_ids": self._prompts[number], "sampling_params": sampling, "stream": True}
        with self._server.open("/generate", body) as response:
            for line in response:
                if line.startswith(b"data: {"):
                    self._came_s[number].append(time.perf_counter())

    def pauses(self, begin_s: float, end_s: float) -> list[float]:
        """Between two tokens of one answer, if any of it lies in these times; longest last."""
        pairs = [pair for came_s in self._came_s for pair in itertools.pairwise(came_s)]
        return sorted(after - before for before, after in pairs if after > begin_s and before < end_s)


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
        tiers += ["--hicache-storage-prefetch-policy", "wait_complete", "--max-running-requests", "16"]
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

    def open(self, path: str, body: dict[str, object]) -> HTTPResponse:
        """The response."""
        url, content = f"http://127.0.0.1:{self.port}{path}", json.dumps(body).encode()
        request = urllib.request.Request(url, content, {"Content-Type": "application/json"})
        return urllib.request.urlopen(request, timeout=600)  # type: ignore[no-any-return]  # noqa: S310

    def post(self, path: str, body: dict[str, object]) -> dict[str, object]:
        """The answer."""
        with self.open(path, body) as response:
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
        measure_beside(server, chooser, options)
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


def measure_beside(server: Server, chooser: random.Random, options: argparse.Namespace) -> None:
    """The first token, and the others' pauses, beside a prefix from the host and one that is computed."""
    prefix = tokens(chooser, options.tokens)
    for name in ("host", "computed"):
        pauses: dict[str, list[float]] = {"alone": [], name: []}
        first_s = []
        for _ in range(options.repeats):
            if name == "host":
                server.first_token_s(prefix, cached=0)
                server.first_token_s(tokens(chooser, options.tokens), cached=0)  # and takes its room
            else:
                prefix = tokens(chooser, options.tokens)
            with Others(server, chooser, options.tokens // 40) as others:
                begun_s = time.perf_counter()
                cached = options.tokens if name == "host" else 0
                first_s.append(server.first_token_s([*prefix, *tokens(chooser, 1)], cached=cached))
                ended_s = time.perf_counter()
            pauses["alone"] += others.pauses(0.0, begun_s)
            pauses[name] += others.pauses(begun_s, ended_s)
            server.drop_memory()
            prefix = tokens(chooser, options.tokens)
        what = {"tier": name, "tokens": options.tokens, "others": NUM_OTHERS, "arguments": " ".join(options.arguments)}
        record(options.record, "ttft_beside_ms_p50", statistics.median(first_s) * 1000, "ms", **what)
        for beside, found in pauses.items():
            record(options.record, "itl_ms_p50", statistics.median(found) * 1000, "ms", **what | {"beside": beside})
            record(options.record, "itl_ms_max", max(found) * 1000, "ms", **what | {"beside": beside})


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
