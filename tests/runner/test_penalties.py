"""What rows have said is counted exactly, also by rows that come back shorter."""

import random
from collections import Counter

import numpy as np
import pytest
import torch

from corymb.models.penalties import Said
from corymb.models.placement import Place

PLACE = Place(torch.device("cpu"))


def counted(said: Said, row: int) -> dict[int, float]:
    token_ids, counts = said.lists(np.array([row], np.int32))
    return dict(zip(token_ids[0].tolist(), counts[0].tolist(), strict=True))


@pytest.mark.parametrize("seed", range(5))
def test_counts_are_those_of_a_counter(seed: int) -> None:
    chooser = random.Random(seed)
    said = Said(12, PLACE)
    prompts: dict[int, list[int]] = {}
    outputs: dict[int, list[int]] = {}
    for _ in range(60):
        row = chooser.randrange(12)
        if row not in prompts or chooser.random() < 0.3:
            prompts[row] = chooser.choices(range(40), k=chooser.choice([1, 5, 600]))
            outputs[row] = chooser.choices(range(40), k=chooser.choice([0, 3]))
            said.open(row, np.array(prompts[row], np.int32), np.array(outputs[row], np.int32))
        rows = chooser.sample(sorted(prompts), k=chooser.randint(1, len(prompts)))
        tokens = [chooser.randrange(45) for _ in rows]
        said.append(np.array(rows, np.int32), torch.tensor(tokens))
        for one, token in zip(rows, tokens, strict=True):
            outputs[one].append(token)
        for one, prompt in prompts.items():
            counts = Counter(outputs[one])
            assert counted(said, one) == {t: counts[t] for t in {*prompt, *outputs[one]}}


def test_lists_grow_beyond_their_first_width() -> None:
    said = Said(3, PLACE)
    said.open(2, np.arange(250, dtype=np.int32), np.empty(0, np.int32))
    for token in range(1000, 1700):
        said.append(np.array([2], np.int32), torch.tensor([token]))
    assert counted(said, 2) == dict.fromkeys(range(250), 0) | dict.fromkeys(range(1000, 1700), 1)
