"""One rank of several that run the same plans on a GPU's runner; prints the tokens and errors of every step as JSON.

Run as `running_rank.py RANK SIZE FOLDER`, where FOLDER holds a model. Without a GPU, kernels are interpreted.
"""

import json
import os
import sys
from pathlib import Path

import numpy as np
import torch

if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"
sys.path.insert(0, str(Path(__file__).parents[1] / "runner"))

from by_hand import Hand, Part, Running

from corymb.kernels.select import Wish
from corymb.models.build import RunnerOptions, build
from corymb.models.cuda_options import CudaOptions
from corymb.models.meeting import Meeting, Ranks
from corymb.scheduler.messages import Sampling
from corymb.scheduler.plan import StepPlan

SETTINGS = [
    {"temperature": 0.0},
    {"temperature": 0.9, "top_p": 0.8, "top_k": 40, "seed": 5, "repetition_penalty": 1.2},
    {"temperature": 0.0, "logit_bias": {7: 3.0}},
]


def plans() -> list[StepPlan]:
    """Chunks, mixtures, and decode steps: all greedy, which a captured step answers by itself, and not."""
    numbers, hand = np.random.default_rng(1), Hand(num_tokens=200)
    sequences = [
        Running(row + 1, numbers.integers(3, 90, size=size).astype(np.int32), Sampling(max_new_tokens=64, **one))
        for row, (size, one) in enumerate(zip((5, 4, 8), SETTINGS, strict=True))
    ]
    first, second, third = (Part(one) for one in sequences)
    made = [hand.plan([first, Part(sequences[1], 3)]), hand.plan([first, second, Part(sequences[2], 6)])]
    made += [hand.plan([third, first])]
    made += [hand.plan([first]) for _ in range(2)]
    return made + [hand.plan([first, second, third]) for _ in range(3)]


def main(rank: int, size: int, folder: Path) -> None:
    """Runs them with one result unread."""
    ranks = Ranks(Meeting(rank, size, size, folder / f"ranks-{size}", 100, 100)) if size > 1 else None
    options = RunnerOptions(
        folder,
        device="cuda",
        dtype="float32",
        max_total_tokens=256,
        max_running_requests=4,
        context_length=32,
        ranks=ranks,
        cuda=CudaOptions(index=rank, attention=Wish(both="triton"), graph_max_tokens=2, max_step_tokens=64),
    )
    runner = build(options, lambda *_: None).runner
    given, results, launched = plans(), [], None
    for plan in given:
        behind = runner.launch(plan)
        if launched is not None:
            results.append(launched.wait())
        launched = behind
    assert launched is not None
    results.append(launched.wait())
    print(json.dumps([[result.token_ids.tolist(), sorted(result.errors)] for result in results]))


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3]))
