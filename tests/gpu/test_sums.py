"""Sums over ranks that reach into each other's memory: a process each."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch

PROGRAM = Path(__file__).with_name("summing_rank.py")


SIZE = 2 if torch.cuda.is_available() else 3


@pytest.mark.skipif(torch.cuda.is_available() and torch.cuda.device_count() < SIZE, reason="needs two GPUs")
def test_sums_are_right_and_the_same_on_every_rank(tmp_path: Path) -> None:
    ranks = [
        subprocess.Popen([sys.executable, PROGRAM, str(rank), str(SIZE), tmp_path], stdout=subprocess.PIPE, text=True)
        for rank in range(SIZE)
    ]
    try:
        said = [rank.communicate(timeout=120)[0] for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
    print(said[0])
    assert [text.splitlines()[-1] for text in said] == ["right"] * SIZE
