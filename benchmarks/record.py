"""Writes figures as JSON lines: one figure a line, with the command, commit, hardware and date it came from.

From a shell: python benchmarks/record.py NAME METRIC VALUE UNIT [KEY=VALUE …]
A copy of the repository without its history takes the commit from the file `.commit` beside it.
"""

import datetime as dt
import json
import os
import platform
import shlex
import subprocess
import sys
from pathlib import Path

RESULTS = Path(__file__).parent / "results"


def record(name: str, metric: str, value: float, unit: str, **params: str | float | int | None) -> None:
    """Appends one figure to results/NAME.jsonl and prints it."""
    line = {
        "metric": metric,
        "value": round(value, 4),
        "unit": unit,
        "params": params,
        "command": shlex.join(["python", *sys.argv]),
        "commit": _commit(),
        "hardware": hardware(),
        "date": dt.datetime.now(dt.UTC).date().isoformat(),
    }
    RESULTS.mkdir(exist_ok=True)
    with (RESULTS / f"{name}.jsonl").open("a") as file:
        file.write(json.dumps(line) + "\n")
    print(f"{metric:24} {value:12.3f} {unit:8} {params}", flush=True)


def hardware() -> str:
    """The machine in words: GPU if there is one, else processor and cores."""
    try:
        answer = subprocess.run(
            ["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"], capture_output=True, text=True, check=True
        )
        names = answer.stdout.strip().splitlines()
        return f"{len(names)} x {names[0]}"
    except (OSError, subprocess.CalledProcessError):
        return f"{len(os.sched_getaffinity(0))} x {_processor()}"


def _processor() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return platform.processor() or platform.machine()


def _commit() -> str:
    root = Path(__file__).parents[1]
    run = lambda *words: subprocess.run(["git", *words], cwd=root, capture_output=True, text=True, check=False)  # noqa: E731
    noted = root / ".commit"
    if noted.exists():  # a copy whose history is not that of its files
        return noted.read_text().strip()
    head = run("rev-parse", "--short=10", "HEAD").stdout.strip()
    if not head:
        return "unknown"
    dirty = run("status", "--porcelain", "--untracked-files=no", "--", ":!benchmarks/results").stdout.strip()
    return f"{head}-dirty" if dirty else head


if __name__ == "__main__":
    name, metric, value, unit, *pairs = sys.argv[1:]
    record(name, metric, float(value), unit, **dict(pair.split("=", 1) for pair in pairs))
