"""Sampling in Triton: token by token what the plain version draws with the same seeds."""

import numpy as np
import pytest
import torch
from noise_kernel import write_noise

from corymb.kernels import reference_sampling, sampling
from corymb.kernels.noise import exponential, row_keys
from corymb.kernels.sampling import Draws
from corymb.kernels.triton_sampling import TritonSampling


def make_draws(place, num_rows, *, seeds=None, **settings) -> Draws:
    def column(name, default, dtype):
        values = settings.get(name, default)
        return torch.as_tensor(np.broadcast_to(values, num_rows).copy()).to(place.device, dtype)

    seeds = place.numbers.integers(1 << 63, size=num_rows).astype(np.uint64) if seeds is None else seeds
    return Draws(
        temperature=column("temperature", 1.0, torch.float32),
        top_k=column("top_k", 0, torch.int64),
        top_p=column("top_p", 1.0, torch.float32),
        min_p=column("min_p", 0.0, torch.float32),
        keys=torch.from_numpy(row_keys(seeds, np.arange(num_rows, dtype=np.int32))).to(place.device),
        any_min_p=bool(np.any(settings.get("min_p", 0.0))),
    )


def draw(place, logits, draws, *, filtered):
    index = torch.arange(len(logits), device=place.device)
    token_ids = torch.full((len(logits),), -1, dtype=torch.int64, device=place.device)
    TritonSampling(place.launch).draw(logits, index, draws, token_ids, filtered=filtered)
    return token_ids


SHAPES = [(2, 100), (1, 4097), pytest.param((64, 128256), marks=pytest.mark.gpu)]


@pytest.mark.parametrize("shape", SHAPES)
def test_masks_take_out_what_they_do_not_name(place, shape) -> None:
    num_rows, size = shape
    logits = place.normal(num_rows + 2, size)
    index = torch.arange(num_rows, device=place.device) + 1
    words = place.numbers.integers(-(2**31), 2**31, size=(num_rows, -(-size // 32)), dtype=np.int64)
    bits = torch.from_numpy(words.astype(np.int32)).to(place.device)
    expected = logits.clone()
    sampling.TorchSampling().mask(expected, index, bits)
    TritonSampling(place.launch).mask(logits, index, bits)
    assert torch.equal(logits, expected)
    for row in range(num_rows):
        allowed = np.unpackbits(words[row].astype(np.int32).view(np.uint8), bitorder="little")[:size].astype(bool)
        assert (expected[row + 1].isfinite().cpu().numpy() == allowed).all()
    assert expected[0].isfinite().all()


@pytest.mark.parametrize("shape", SHAPES)
def test_greedy_takes_the_lowest_of_the_best(place, shape) -> None:
    logits = place.normal(*shape).round()  # many equals
    choice = TritonSampling(place.launch).greedy(logits)
    expected = sampling.greedy(logits)
    assert torch.equal(choice.token_ids, expected.token_ids)
    assert choice.usable.all()


def test_greedy_tells_unusable_rows(place) -> None:
    logits = place.normal(5, 5000)
    logits[0, 4500] = float("nan")
    logits[1, 3] = float("inf")
    logits[2] = float("-inf")
    logits[3, :4999] = float("-inf")
    choice = TritonSampling(place.launch).greedy(logits)
    assert choice.usable.tolist() == [False, False, False, True, True]
    assert choice.token_ids[3] == 4999
    assert ((choice.token_ids >= 0) & (choice.token_ids < 5000)).all()


@pytest.mark.parametrize("shape", SHAPES)
def test_draws_what_the_plain_version_draws(place, shape) -> None:
    logits = place.normal(*shape, scale=3.0)
    draws = make_draws(place, shape[0], temperature=place.numbers.uniform(0.2, 2.0, shape[0]), min_p=0.01)
    assert torch.equal(draw(place, logits, draws, filtered=False), sampling.draw(logits, draws))


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize(
    "settings",
    [{"top_k": 7}, {"top_p": 0.6}, {"top_k": 20, "top_p": 0.5, "min_p": 0.02}, {"top_k": 1}, {"top_k": 1 << 30}],
    ids=str,
)
def test_filters_as_the_plain_version_does(place, shape, settings) -> None:
    logits = (place.normal(*shape, scale=3.0) * 8).round() / 8  # equals at the cuts
    draws = make_draws(place, shape[0], **settings)
    assert torch.equal(draw(place, logits, draws, filtered=True), sampling.draw_filtered(logits, draws))


def test_rows_of_one_batch_keep_their_own_settings(place) -> None:
    logits = place.normal(6, 300, scale=4.0)
    draws = make_draws(
        place, 6, top_k=[0, 1, 5, 300, 0, 40], top_p=[1.0, 1.0, 0.9, 0.3, 1e-6, 0.99], temperature=[1, 2, 0.5, 3, 1, 9]
    )
    token_ids = draw(place, logits, draws, filtered=True)
    assert torch.equal(token_ids, sampling.draw_filtered(logits, draws))
    assert torch.equal(token_ids[[1, 4]], logits[[1, 4]].argmax(1))


def test_agrees_with_the_definition_token_by_token(place) -> None:
    num_rows, size = 6, 40
    logits = (place.normal(num_rows, size, scale=2.0) * 4).round() / 4
    seeds = place.numbers.integers(1 << 63, size=num_rows).astype(np.uint64)
    draws = make_draws(place, num_rows, seeds=seeds, temperature=0.8, top_k=12, top_p=0.8, min_p=0.05)
    request = reference_sampling.Request(temperature=0.8, top_k=12, top_p=0.8, min_p=0.05)
    expected = [
        reference_sampling.choose(line.tolist(), request, reference_sampling.row_key(int(seed), row))
        for row, (line, seed) in enumerate(zip(logits.cpu(), seeds, strict=True))
    ]
    assert draw(place, logits, draws, filtered=True).tolist() == expected


def test_only_rows_of_the_index_are_drawn(place) -> None:
    logits = place.normal(5, 200)
    index = torch.tensor([3, 1], device=place.device)
    token_ids = torch.full((5,), -7, dtype=torch.int64, device=place.device)
    draws = make_draws(place, 2)
    TritonSampling(place.launch).draw(logits, index, draws, token_ids, filtered=False)
    assert token_ids[[0, 2, 4]].tolist() == [-7] * 3
    assert torch.equal(token_ids[index], sampling.draw(logits[index], draws))


def test_forbidden_and_missing_tokens_are_never_drawn(place) -> None:
    logits = torch.full((8, 130), float("-inf"), device=place.device)
    logits[:, 77] = -3.0
    draws = make_draws(place, 8, temperature=5.0, top_p=0.9)
    assert draw(place, logits, draws, filtered=True).tolist() == [77] * 8
    assert draw(place, logits, draws, filtered=False).tolist() == [77] * 8


@pytest.mark.gpu  # thousands of launches' worth of draws; elsewhere equality with the plain version has to do
def test_frequencies_follow_the_distribution(place) -> None:
    num_draws = 20000
    probabilities = torch.tensor([0.5, 0.3, 0.15, 0.05])
    logits = probabilities.log().expand(num_draws, 4).contiguous().to(place.device)
    counts = draw(place, logits, make_draws(place, num_draws), filtered=False).bincount(minlength=4).cpu()
    deviation = (counts - num_draws * probabilities) / (num_draws * probabilities * (1 - probabilities)).sqrt()
    assert deviation.abs().max() < 5.5


def test_noise_is_the_plain_versions(place) -> None:
    keys = torch.from_numpy(row_keys(np.arange(3, dtype=np.uint64), np.arange(3, dtype=np.int32))).to(place.device)
    expected = exponential(keys, torch.arange(1024, dtype=torch.int32, device=place.device))
    out = place.poison(3, 1024)
    write_noise[(3,)](keys, out, PORTABLE=place.launch.interpreted)
    assert ((out - expected).abs() <= 4e-7 * expected).all()
