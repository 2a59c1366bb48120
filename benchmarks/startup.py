"""Measures how long `serve` takes from its command line to the first good answer.

python benchmarks/startup.py                 # the demo model; the first run fills the model cache and is not counted
python benchmarks/startup.py -- corymb/tape
"""

import argparse
import json
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request

from record import record

BODY = {"messages": [{"role": "user", "content": "What is a corymb?"}], "max_tokens": 8, "temperature": 0}


def main() -> None:
    """Starts the server once for the caches and then as often as asked."""
    options = parse()
    measure(options.arguments)
    for _ in range(options.repeats):
        seconds = measure(options.arguments)
        record("startup", "startup_s", seconds, "s", arguments=" ".join(options.arguments))


def parse() -> argparse.Namespace:
    """Reads the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("arguments", nargs="*", metavar="ARGUMENT", help="of serve")
    return parser.parse_args()


def measure(arguments: list[str]) -> float:
    """Seconds from the start of the process to the last byte of its first answer."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port = sock.getsockname()[1]
    command = [sys.executable, "-P", "-m", "corymb.serve", *arguments, "--port", str(port)]
    begun_s = time.perf_counter()
    with subprocess.Popen(command) as server:
        try:
            while not answered(port):
                if server.poll() is not None:
                    sys.exit(f"the server ended with status {server.returncode}")
                time.sleep(0.02)
            return time.perf_counter() - begun_s
        finally:
            server.terminate()


def answered(port: int) -> bool:
    """Whether the server gives tokens."""
    url = f"http://127.0.0.1:{port}/v1/chat/completions"
    request = urllib.request.Request(url, json.dumps(BODY).encode(), {"Content-Type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=60) as response:  # noqa: S310
            return bool(json.load(response)["usage"]["completion_tokens"])
    except (urllib.error.URLError, ConnectionError):
        return False


if __name__ == "__main__":
    main()
