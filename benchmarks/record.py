"""Writes figures as JSON lines: one figure a line, with the command, commit, hardware and date it came from.

From a shell:
    python benchmarks/record.py NAME METRIC VALUE UNIT [KEY=VALUE …]
    python benchmarks/record.py take FILE         # appends what another machine left in the file that FIGURES names
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
# A machine that is given back keeps nothing: what this variable names gets every figure, behind its file's name.
FIGURES = "CORYMB_FIGURES"


def record(name: str, metric: str, value: float, unit: str, **params: str | float | int | None) -> None:
    """Appends one figure to results/NAME.jsonl and prints it."""
    figure = {
        "metric": metric,
        "value": round(value, 4),
        "unit": unit,
        "params": params,
        "command": shlex.join(["python", *sys.argv]),
        "commit": _commit(),
        "hardware": hardware(),
        "date": dt.datetime.now(dt.UTC).date().isoformat(),
    }
    line = json.dumps(figure)
    _append(name, line)
    if also := os.environ.get(FIGURES):
        with Path(also).open("a") as file:
            file.write(f"{name}\t{line}\n")
    print(f"{metric:24} {value:12.3f} {unit:8} {params}", flush=True)


def figures(name: str) -> list[dict[str, object]]:
    """All that is recorded under a name, oldest first."""
    path = RESULTS / f"{name}.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def take(file: Path) -> int:
    """Appends the figures of a file that FIGURES named to those of their names; returns how many there were."""
    lines = file.read_text().splitlines()
    for line in lines:
        name, _, figure = line.partition("\t")
        json.loads(figure)  # the last one may be half a line
        _append(name, figure)
    return len(lines)


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


def _append(name: str, line: str) -> None:
    RESULTS.mkdir(exist_ok=True)
    with (RESULTS / f"{name}.jsonl").open("a") as file:
        file.write(line + "\n")


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
    if sys.argv[1] == "take":
        print(f"{take(Path(sys.argv[2]))} figures")
    else:
        name, metric, value, unit, *pairs = sys.argv[1:]
        record(name, metric, float(value), unit, **dict(pair.split("=", 1) for pair in pairs))
