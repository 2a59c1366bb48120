"""Lets the tests of this folder import its helpers and `by_loop`."""

import sys
from pathlib import Path

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parent / "runner")]
