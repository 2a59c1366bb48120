"""Plants each fault into a copy of the layers and says which test catches it. Exits with 1 when one gets by.

python tests/mutants/mutants.py              all faults, against all tests of the cache
python tests/mutants/mutants.py "half a page is matched"
"""

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from faults import FAULTS, Fault

ROOT = Path(__file__).parents[2]
LAYERS = ("cache", "scheduler", "serve")
TESTS = {  # the state machine of the cache alone first
    "cache": ("tests/cache/test_machine.py", "tests/cache"),
    "scheduler": ("tests/scheduler/test_states.py", "tests/scheduler"),
}


def catch(fault: Fault) -> str | None:
    """Returns the first test that fails with the fault in place; None when none does."""
    with tempfile.TemporaryDirectory() as folder:
        package = Path(folder) / "corymb"
        for layer in LAYERS:
            shutil.copytree(ROOT / layer, package / layer, ignore=shutil.ignore_patterns("__pycache__"))
        plant(fault, package)
        tests = TESTS[fault.file.split("/")[0]]
        return next((name for test in tests if (name := _failing(Path(folder), test))), None)


def plant(fault: Fault, package: Path) -> None:
    """Changes the one line. Raises ValueError when it is not there exactly once: then the fault needs a new line."""
    path = package / fault.file
    source = path.read_text()
    if source.count(fault.line) != 1:
        raise ValueError(f"{fault.name}: {fault.line!r} stands {source.count(fault.line)} times in {fault.file}")
    path.write_text(source.replace(fault.line, fault.instead))


def _failing(folder: Path, test: str) -> str | None:
    options = ["-x", "-q", "-p", "no:cacheprovider", "--no-header", "--hypothesis-profile=mutants"]
    command = [sys.executable, "-m", "pytest", *options, test]
    environment = os.environ | {"PYTHONPATH": str(folder), "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run(command, check=False, cwd=ROOT, env=environment, capture_output=True, text=True)
    if done.returncode == 0:
        return None
    failed = re.search(r"^(?:FAILED|ERROR) (\S+)", done.stdout, re.MULTILINE)
    if done.returncode != 1 or failed is None:
        raise RuntimeError(f"the tests did not run: {done.stdout[-2000:]}{done.stderr[-2000:]}")
    return failed[1]


def main() -> int:
    """Prints a line a fault."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", help="of faults; all by default")
    names, missed = parser.parse_args().names, 0
    for fault in FAULTS:
        if names and fault.name not in names:
            continue
        caught = catch(fault)
        missed += caught is None
        print(f"{'caught' if caught else 'MISSED'}  {fault.name:<62} {caught or ''}", flush=True)
    return int(missed > 0)


if __name__ == "__main__":
    sys.exit(main())
