"""What rejection sampling accepts follows the target, whatever drafted: counted over many rows."""

import itertools

import numpy as np
import pytest
import torch

from corymb.kernels.acceptance import match, probabilities, reject
from corymb.kernels.noise import exponential, other_keys, row_keys
from corymb.kernels.sampling import Draws, draw_filtered

NUM_ROWS = 100_000
VOCAB = 4
NUM_DRAFTS = 2


def distributions(generator: torch.Generator, *shape: int) -> torch.Tensor:
    return (torch.randn(*shape, VOCAB, generator=generator) * 1.5).softmax(dim=-1)


def draw(chances: torch.Tensor, keys: torch.Tensor) -> torch.Tensor:
    return (chances / exponential(keys, torch.arange(VOCAB, dtype=torch.int32))).argmax(dim=1)


def keys_of(make, place: int) -> torch.Tensor:
    return torch.from_numpy(make(np.arange(NUM_ROWS, dtype=np.uint64), np.full(NUM_ROWS, place, np.int32)))


@pytest.mark.parametrize("certain", [False, True], ids=["drawn", "certain"])
@pytest.mark.parametrize("window", [0, 1, 2])
def test_pairs_of_tokens_come_as_often_as_the_target_says(window: int, *, certain: bool) -> None:
    """The target's next token depends on the one before; so does the draft's, in another way."""
    generator = torch.Generator().manual_seed(5)
    first, second = distributions(generator), distributions(generator, VOCAB)
    third = distributions(generator, VOCAB, VOCAB)
    draft_first, draft_second = distributions(generator), distributions(generator, VOCAB)
    x1 = torch.full((NUM_ROWS,), 2) if certain else draw(draft_first.expand(NUM_ROWS, -1), keys_of(row_keys, 0))
    x2 = (x1 + 1) % VOCAB if certain else draw(draft_second[x1], keys_of(row_keys, 1))
    target = torch.stack((first.expand(NUM_ROWS, -1), second[x1], third[x1, x2]), dim=1)
    draft = None if certain else torch.stack((draft_first.expand(NUM_ROWS, -1), draft_second[x1]), dim=1)
    keys = torch.stack([keys_of(other_keys, place) for place in range(3)], dim=1)
    drafts, windows = torch.stack((x1, x2), dim=1), torch.full((NUM_ROWS,), window)
    accepted, last = reject(target, draft, drafts, windows, keys)
    assert int(accepted.max()) <= window
    # The second token of rows that gave one: the rest are drawn as plain decoding would go on.
    says = torch.cat((drafts, drafts[:, :1]), dim=1)
    says[torch.arange(NUM_ROWS), accepted] = last
    missing = accepted == 0
    says[missing, 1] = draw(second[says[missing, 0]], keys_of(row_keys, 7)[missing])
    counts = torch.bincount(says[:, 0] * VOCAB + says[:, 1], minlength=VOCAB * VOCAB).double()
    expected = NUM_ROWS * (first[:, None] * second).reshape(-1).double()
    chi_square = float(((counts - expected) ** 2 / expected).sum())
    assert chi_square < 37.7  # 15 degrees of freedom: one fair run in a thousand is above


def test_a_draft_that_the_target_never_says_is_never_accepted() -> None:
    target = torch.tensor([[[0.0, 1.0, 0.0, 0.0], [0.25, 0.25, 0.25, 0.25]]])
    keys = torch.zeros(1, 2, 2, dtype=torch.int32)
    accepted, last = reject(target, None, torch.tensor([[2]]), torch.tensor([1]), keys)
    assert (int(accepted), int(last)) == (0, 1)


def test_equal_distributions_accept_everything() -> None:
    generator = torch.Generator().manual_seed(1)
    target = distributions(generator, 1000, NUM_DRAFTS + 1)
    drafts = torch.stack([draw(target[:, place], keys_of(row_keys, place)[:1000]) for place in range(2)], dim=1)
    keys = torch.stack([keys_of(other_keys, place)[:1000] for place in range(3)], dim=1)
    accepted, _ = reject(target, target[:, :2], drafts, torch.full((1000,), 2), keys)
    assert (accepted == 2).all()


def test_match_stops_at_the_first_difference_and_at_the_window() -> None:
    own = torch.tensor([[1, 2, 3, 4]] * 4)
    drafts = torch.tensor([[1, 2, 3], [1, 9, 3], [9, 2, 3], [1, 2, 3]])
    assert match(own, drafts, torch.tensor([3, 3, 3, 1])).tolist() == [3, 1, 0, 1]


@pytest.mark.parametrize(("top_k", "top_p", "min_p"), list(itertools.product([0, 3], [1.0, 0.7], [0.0, 0.2])))
def test_probabilities_are_those_that_tokens_are_drawn_from(top_k: int, top_p: float, min_p: float) -> None:
    count, vocab = 40_000, 6
    generator = torch.Generator().manual_seed(top_k)
    logits = torch.randn(1, vocab, generator=generator).expand(count, -1)
    keys = torch.from_numpy(row_keys(np.arange(count, dtype=np.uint64), np.zeros(count, np.int32)))
    draws = Draws(
        temperature=torch.full((count,), 0.8),
        top_k=torch.full((count,), top_k),
        top_p=torch.full((count,), top_p),
        min_p=torch.full((count,), min_p),
        keys=keys,
        any_min_p=min_p > 0,
    )
    shares = torch.bincount(draw_filtered(logits, draws), minlength=vocab) / count
    filtered = top_k > 0 or top_p < 1
    chances = probabilities(logits[:1], draws.pick(slice(0, 1)), filtered=filtered)[0]
    assert (shares - chances).abs().max() < 0.01
    assert ((shares > 0) == (chances > 0)).all()
