"""Tensor sampling agrees with the plain version, row by row."""

import math
import random

import numpy as np
import pytest
import torch

from corymb.kernels import logit_edits
from corymb.kernels import reference_sampling as reference
from corymb.kernels.logit_edits import Entries, Penalties
from corymb.kernels.noise import exponential, row_keys
from corymb.kernels.reference_sampling import Request
from corymb.kernels.sampling import Draws, best, draw, draw_filtered, exact_best, greedy

SEEDS = [0, 1, 7, 2**63, 2**64 - 1, 123456789]


def make_draws(requests: list[Request], keys: np.ndarray) -> Draws:
    return Draws(
        temperature=torch.tensor([one.temperature for one in requests]),
        top_k=torch.tensor([one.top_k for one in requests]),
        top_p=torch.tensor([one.top_p for one in requests]),
        min_p=torch.tensor([one.min_p for one in requests]),
        any_min_p=any(one.min_p > 0 for one in requests),
        keys=torch.from_numpy(keys),
    )


def make_keys(count: int, start: int = 0) -> tuple[np.ndarray, list[tuple[int, int]]]:
    seeds = [SEEDS[i % len(SEEDS)] for i in range(count)]
    indices = [start + i for i in range(count)]
    keys = row_keys(np.array(seeds, np.uint64), np.array(indices, np.int32))
    return keys, [reference.row_key(seed, index) for seed, index in zip(seeds, indices, strict=True)]


def test_keys_are_those_of_the_plain_version() -> None:
    keys, expected = make_keys(40)
    assert keys.view(np.uint32).tolist() == [list(key) for key in expected]


def test_noise_is_that_of_the_plain_version() -> None:
    keys, plain = make_keys(6)
    token_ids = torch.tensor([0, 1, 2, 263, 49151, 262143], dtype=torch.int32)
    noise = exponential(torch.from_numpy(keys), token_ids)
    expected = [[reference.exponential(key, token_id) for token_id in token_ids.tolist()] for key in plain]
    torch.testing.assert_close(noise, torch.tensor(expected), rtol=1e-5, atol=1e-5)


def test_noise_is_exponential() -> None:
    keys, _ = make_keys(20)
    variates = exponential(torch.from_numpy(keys), torch.arange(5000, dtype=torch.int32)).flatten()
    edges = torch.tensor([-math.log(1 - i / 20) for i in range(1, 20)])
    counts = torch.bincount(torch.bucketize(variates, edges), minlength=20).double()
    expected = len(variates) / 20
    assert float(((counts - expected) ** 2 / expected).sum()) < 43.8  # chi-square, 19 degrees: 99.9 %


@pytest.mark.parametrize("vocab_size", [7, 264, 1500, 9000])
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_draws_agree_with_the_plain_version(vocab_size: int, seed: int) -> None:
    chooser = random.Random(seed)
    requests = [
        Request(
            temperature=chooser.choice([0.1, 0.7, 1.0, 1.7]),
            top_k=chooser.choice([0, 1, 3, 50, vocab_size, vocab_size + 5]),
            top_p=chooser.choice([1.0, 0.9, 0.5, 0.01]),
            min_p=chooser.choice([0.0, 0.0, 0.05, 1.0]),
        )
        for _ in range(12)
    ]
    logits = torch.randn(12, vocab_size, generator=torch.Generator().manual_seed(seed)) * 4
    logits[::3] = logits[::3].round()  # many equals
    keys, plain = make_keys(12, start=seed)
    token_ids = draw_filtered(logits, make_draws(requests, keys)).tolist()
    expected = [reference.choose(row.tolist(), one, key) for row, one, key in zip(logits, requests, plain, strict=True)]
    assert token_ids == expected


def test_draws_without_filters_agree_with_the_plain_version() -> None:
    requests = [Request(temperature=temperature, min_p=min_p) for temperature in (0.5, 1.0, 2.0) for min_p in (0, 0.2)]
    logits = torch.randn(6, 1000, generator=torch.Generator().manual_seed(5)) * 3
    keys, plain = make_keys(6)
    expected = [reference.choose(row.tolist(), one, key) for row, one, key in zip(logits, requests, plain, strict=True)]
    assert draw(logits, make_draws(requests, keys)).tolist() == expected


def test_draws_follow_the_distribution() -> None:
    logits = torch.tensor([2.0, 1.0, 0.0, -1.0, 3.0])
    count = 20_000
    keys = row_keys(np.arange(count, dtype=np.uint64) * np.uint64(7919), np.arange(count, dtype=np.int32) % 50)
    token_ids = draw(logits.expand(count, 5), make_draws([Request(temperature=1.5)] * count, keys))
    expected = (logits / 1.5).softmax(dim=0).double() * count
    counts = torch.bincount(token_ids, minlength=5).double()
    assert float(((counts - expected) ** 2 / expected).sum()) < 18.5  # chi-square, 4 degrees: 99.9 %


def test_one_seed_draws_independently_along_its_output() -> None:
    count = 20_000
    keys = row_keys(np.full(count, 7, np.uint64), np.arange(count, dtype=np.int32))
    token_ids = draw(torch.zeros(count, 4), make_draws([Request(temperature=1.0)] * count, keys))
    pairs = torch.bincount(token_ids[:-1] * 4 + token_ids[1:], minlength=16).double()
    expected = (count - 1) / 16
    assert float(((pairs - expected) ** 2 / expected).sum()) < 37.7  # chi-square, 15 degrees: 99.9 %


def test_huge_vocabulary_goes_through_the_short_cuts_and_the_sort() -> None:
    logits = torch.randn(4, 20_000, generator=torch.Generator().manual_seed(3))
    logits[0] *= 8  # a nucleus of a few tokens
    logits[3] = 0  # all equal
    requests = [Request(temperature=1.0, top_p=0.9)] * 2 + [
        Request(temperature=1.0, top_k=300),
        Request(temperature=1.0, top_k=5),
    ]
    keys, plain = make_keys(4)
    expected = [reference.choose(row.tolist(), one, key) for row, one, key in zip(logits, requests, plain, strict=True)]
    assert draw_filtered(logits, make_draws(requests, keys)).tolist() == expected
    assert expected[3] < 5


def test_a_row_draws_the_same_in_any_batch() -> None:
    logits = torch.randn(5, 3000, generator=torch.Generator().manual_seed(9)).round()
    requests = [
        Request(temperature=1.0, top_k=k, top_p=p) for k, p in [(2, 1.0), (0, 0.5), (1000, 0.99), (0, 0.999), (7, 0.3)]
    ]
    keys, _ = make_keys(5)
    together = draw_filtered(logits, make_draws(requests, keys)).tolist()
    alone = [
        draw_filtered(logits[i : i + 1], make_draws(requests[i : i + 1], keys[i : i + 1])).item() for i in range(5)
    ]
    assert together == alone


def test_tiny_and_huge_temperatures_do_not_overflow() -> None:
    logits = torch.tensor([[3e38, -3e38, 0.0]]).repeat(2, 1)
    keys, _ = make_keys(2)
    requests = [Request(temperature=1e-5), Request(temperature=1e-5, top_p=0.5)]
    assert draw(logits, make_draws(requests, keys)).tolist() == [0, 0]
    assert draw_filtered(logits, make_draws(requests, keys)).tolist() == [0, 0]


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_unusable_rows_are_told_apart(bad: float) -> None:
    logits = torch.zeros(4, 10)
    logits[1, 4] = bad
    logits[2] = -math.inf
    logits[3, :9] = -math.inf
    choice = greedy(logits)
    assert choice.usable.tolist() == [True, False, False, True]
    assert choice.token_ids.tolist()[::3] == [0, 9]


def test_best_takes_lower_ids_among_equals() -> None:
    values = torch.tensor([[1.0, 3.0, 3.0, 2.0, 3.0], [0.0, 0.0, 0.0, 0.0, 0.0]])
    assert exact_best(values, 2).token_ids.tolist() == [[1, 2], [0, 1]]
    assert best(values, 5).token_ids.tolist() == [[1, 2, 4, 3, 0], [0, 1, 2, 3, 4]]
    assert exact_best(values, 9).values.tolist() == [[3.0, 3.0, 3.0, 2.0, 1.0], [0.0] * 5]


def test_edits_agree_with_the_plain_version() -> None:
    logits = torch.randn(3, 20, generator=torch.Generator().manual_seed(2)) * 5
    one = Request(
        prompt_ids=[1, 2, 3],
        output_ids=[3, 4, 4],
        bias={2: 5.0, 9: -100.0},
        forbidden_ids=[7, 8],
        repetition=1.3,
        presence=0.5,
        frequency=0.25,
    )
    expected = torch.tensor(reference.edit(logits[1].tolist(), one))
    untouched = logits[[0, 2]].clone()
    logit_edits.add_bias(logits, entries(1, [2, 9]), torch.tensor([5.0, -100.0]))
    said = Penalties(
        rows=torch.tensor([1]),
        token_ids=torch.tensor([[1, 2, 3, 4, 1, 1]]),
        counts=torch.tensor([[0.0, 0, 1, 2, 0, 0]]),
        repetition=torch.tensor([1.3]),
        presence=torch.tensor([0.5]),
        frequency=torch.tensor([0.25]),
    )
    logit_edits.penalize(logits, said)
    logit_edits.forbid(logits, entries(1, [7, 8]))
    torch.testing.assert_close(logits[1], expected)
    assert torch.equal(logits[[0, 2]], untouched)


def entries(row: int, token_ids: list[int]) -> Entries:
    return Entries(torch.full((len(token_ids),), row), torch.tensor(token_ids))
