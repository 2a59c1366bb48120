"""What requests without a seed sample follows the target through the whole loop, whatever earlier drafts decided."""

from collections.abc import Callable, Iterable, Iterator
from itertools import combinations
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import torch
from by_loop import FakePort, serve
from drafting import Drafts, DrawingDrafter
from test_exactness import write_folder

from corymb.kernels.noise import row_keys
from corymb.kernels.sampling import TorchSampling
from corymb.models.placement import Place
from corymb.models.sampler import Sampler, Turn
from corymb.models.speculation import Proposal
from corymb.scheduler.constraint import Matchers
from corymb.scheduler.messages import Generate, Grammar, Sampling
from corymb.scheduler.plan import Int32, Opened, Sampled, StepPlan

NUM_DRAFTS = 4
NUM_REQUESTS, NUM_TOKENS = 40, 100
FEWER = 16
FIRST_SEED = 3
VOCAB = 264
TARGET = torch.tensor([0.3, 0.3, 0.3, 0.1])  # of the first token ids; nothing else is ever said
DRAFT = torch.tensor([0.01, 0.01, 0.28, 0.7])
LAG = 2  # steps that a budget's confidence is old


class FirstLast:
    """The first row gets what the budget has left for it."""

    checks_all = False

    def allot(self, proposal: Proposal, most: Int32, budget: int | None) -> Int32:
        windows = most.copy()
        if budget is not None:
            windows[0] = min(int(most[0]), budget - int(most[1:].sum()))
        return windows


class DoubtfulBudgets:
    """Leaves the first row no draft two steps behind a doubt of its last one: a doubt of the draft before that, at a
    place that a row which moved by one token each time is now about to draft again."""

    num_drafts = NUM_DRAFTS

    def __init__(self) -> None:
        self._doubts: dict[tuple[int, int], bool] = {}  # by step and row
        self.num_trimmed = 0
        self.said: list[int] = []  # by first rows

    def open(self, row: int, step: int) -> None:
        pass

    def budget(self, step: int, rows: Int32, starts: Int32, most: Int32) -> int | None:
        if not self._doubts.get((step - LAG, int(rows[0]))):
            return None
        self.num_trimmed += 1
        return int(most[1:].sum())

    def learn(self, plan: StepPlan, sampled: Sampled) -> None:
        if plan.windows is not None:
            self.said += sampled.token_ids[: sampled.counts[0]].tolist()
        if sampled.drafted is not None and sampled.drafted.confidence is not None:
            doubts = sampled.drafted.confidence[:, -1] < 0.5
            self._doubts |= {(plan.step, row): bool(it) for row, it in zip(plan.rows.tolist(), doubts, strict=True)}


def requests(*, seeded: bool, **sampling: float) -> list[Generate]:
    bias = {token: 60 + float(chance.log()) for token, chance in enumerate(TARGET)}
    settings = {"max_new_tokens": NUM_TOKENS, "ignore_eos": True, "logit_bias": bias, "seeded": seeded, **sampling}
    prompt = np.array([97], np.int32).tobytes()
    choices = [Sampling(seed=7 * index + FIRST_SEED, **settings) for index in range(NUM_REQUESTS)]  # type: ignore[arg-type]
    return [Generate(rid=str(index), prompt=prompt, sampling=each) for index, each in enumerate(choices)]


def run(tmp_path: Path, asked: list[Generate]) -> tuple[DrawingDrafter, DoubtfulBudgets]:
    drafter, windows, _ = run_all(tmp_path, asked)
    return drafter, windows


def run_all(
    tmp_path: Path, asked: list[Generate], matchers: Matchers | None = None, *, num_running: int = 2
) -> tuple[DrawingDrafter, DoubtfulBudgets, FakePort]:
    windows = DoubtfulBudgets()
    speculation = Drafts(
        lambda num_rows: DrawingDrafter(DRAFT, VOCAB, NUM_DRAFTS, num_rows=num_rows), allotment=FirstLast()
    )
    options = {
        "max_running_requests": num_running,
        "speculation": speculation,
        "windows": windows,
        "matchers": matchers,
    }
    port = serve(write_folder(tmp_path, "CorymbUniform"), asked, options)
    (drafter,) = speculation.drafters
    assert isinstance(drafter, DrawingDrafter)
    return drafter, windows, port


@pytest.mark.parametrize("filters", [{}, {"top_k": len(TARGET)}], ids=["", "filtered"])
def test_pairs_come_as_often_as_the_target_says(tmp_path: Path, filters: dict[str, int]) -> None:
    _, windows = run(tmp_path, requests(seeded=False, **filters))
    assert windows.num_trimmed > 400
    pairs = np.array(windows.said[: len(windows.said) // 2 * 2]).reshape(-1, 2)
    counts = np.bincount(pairs[:, 0] * len(TARGET) + pairs[:, 1], minlength=len(TARGET) ** 2)
    expected = len(pairs) * (TARGET[:, None] * TARGET).reshape(-1).double().numpy()
    chi_square = float(((counts - expected) ** 2 / expected).sum())
    assert chi_square < 37.7  # 15 degrees of freedom: one fair run in a thousand is above


Law = Callable[[list[int]], np.ndarray]  # of the next token, behind the outputs so far


def fairness(outputs: Iterable[list[int]], law: Law) -> np.ndarray:
    """By token, how many standard deviations it came more often than the law says, whatever it was that came before."""
    more, variance = np.zeros(len(TARGET)), np.zeros(len(TARGET))
    for said in outputs:
        for index, token in enumerate(said):
            chances = law(said[:index])
            more += (np.arange(len(TARGET)) == token) - chances
            variance += chances * (1 - chances)
    return more / np.sqrt(np.maximum(variance, 1e-9))


def normal(weights: np.ndarray) -> np.ndarray:
    return weights / weights.sum()


def penalized(frequency: float, presence: float) -> Law:
    def law(said: list[int]) -> np.ndarray:
        counts = np.bincount(said, minlength=len(TARGET))
        return normal(TARGET.double().numpy() * np.exp(-frequency * counts - presence * (counts > 0)))

    return law


def without_the_unlikely(_: list[int]) -> np.ndarray:
    return normal(TARGET.double().numpy() * (TARGET.numpy() >= 0.5 * 0.3))


LAWS: dict[str, tuple[dict[str, float], Law]] = {
    "penalties": ({"frequency_penalty": 0.05, "presence_penalty": 0.7}, penalized(0.05, 0.7)),
    "min-p": ({"min_p": 0.5}, without_the_unlikely),
}


@pytest.mark.parametrize("case", LAWS)
def test_what_is_edited_and_filtered_comes_as_often_as_without_drafts(tmp_path: Path, case: str) -> None:
    fields, law = LAWS[case]
    asked = requests(seeded=False, **fields)[:FEWER]
    _, windows, port = run_all(tmp_path, asked, num_running=FEWER)
    assert windows.num_trimmed > 20
    outputs = [port.token_ids(each.rid) for each in asked]
    assert (np.abs(fairness(outputs, law)) < 3.9).all()  # one fair run in a few thousand is above
    other = fairness(outputs, lambda _: TARGET.double().numpy())
    assert (np.abs(other) > 3.9).any(), "the options change nothing"


class Alternating:
    """A Matcher: all but the last token at even places, all but the first at odd ones; never ends."""

    is_over = False

    def __init__(self) -> None:
        self.count = 0

    def accept(self, token_id: int) -> bool:
        fits = token_id in self.allowed(self.count)
        self.count += fits
        return fits

    def rollback(self, count: int) -> None:
        self.count -= count

    def fill(self, bits: Int32) -> None:
        bits[:] = 0
        bits[0] = sum(1 << token for token in self.allowed(self.count))

    @staticmethod
    def allowed(count: int) -> range:
        return range(1, len(TARGET)) if count % 2 else range(len(TARGET) - 1)


class AlternatingMatchers:
    """Matchers of one grammar."""

    def learn(self, grammar: Grammar, compiled: bytes) -> None:
        pass

    def learnt(self, grammar: Grammar) -> str:
        return ""

    def knows(self, grammar: Grammar) -> bool:
        return True

    def open(self, grammar: Grammar) -> Alternating:
        return Alternating()

    def forget(self, grammar: Grammar) -> None:
        pass


def test_what_masks_leave_comes_as_often_as_without_drafts(tmp_path: Path) -> None:
    def law(said: list[int]) -> np.ndarray:
        allowed = np.isin(np.arange(len(TARGET)), Alternating.allowed(len(said)))
        return normal(TARGET.double().numpy() * allowed)

    asked = [
        msgspec.structs.replace(each, sampling=msgspec.structs.replace(each.sampling, grammar=Grammar("regex", "x")))
        for each in requests(seeded=False)[:FEWER]
    ]
    _, windows, port = run_all(tmp_path, asked, AlternatingMatchers(), num_running=FEWER)
    assert windows.num_trimmed > 20
    outputs = [port.token_ids(each.rid) for each in asked]
    assert all(token in Alternating.allowed(at) for said in outputs for at, token in enumerate(said))
    assert (np.abs(fairness(outputs, law)) < 3.9).all()


class Estimated:
    """Everything may be verified; adds up what became known of blocks."""

    num_drafts = NUM_DRAFTS

    def __init__(self) -> None:
        self.blocks = np.zeros(3)

    def open(self, row: int, step: int) -> None:
        pass

    def budget(self, step: int, rows: Int32, starts: Int32, most: Int32) -> None:
        pass

    def learn(self, plan: StepPlan, sampled: Sampled) -> None:
        if sampled.drafted is not None and sampled.drafted.blocks is not None:
            blocks = sampled.drafted.blocks
            self.blocks += (blocks.count, blocks.lower, blocks.upper)


def test_trimmed_blocks_are_estimated_as_long_as_whole_ones_would_have_been(tmp_path: Path) -> None:
    windows = Estimated()
    speculation = Drafts(  # windows by chance, whatever is drafted
        lambda num_rows: DrawingDrafter(DRAFT, VOCAB, NUM_DRAFTS, num_rows=num_rows)
    )
    options = {"max_running_requests": FEWER, "speculation": speculation, "windows": windows}
    serve(write_folder(tmp_path, "CorymbUniform"), requests(seeded=False)[:FEWER], options)
    count, lower, upper = windows.blocks
    accepts = float(torch.minimum(TARGET, DRAFT).sum())
    whole = sum(accepts**place for place in range(NUM_DRAFTS + 1))
    assert count > 500
    assert lower / count - 0.1 < whole < upper / count + 0.1
    assert (upper - lower) / count < 0.5


class CountedSampling(TorchSampling):
    """Counts the tokens that are drawn, and how many rows of logits there were for them."""

    def __init__(self) -> None:
        self.num_drawn = 0

    def draw(self, logits: torch.Tensor, index: torch.Tensor, *others: Any, **options: Any) -> None:
        self.num_drawn += len(index)
        super().draw(logits, index, *others, **options)


def test_what_is_drawn_elsewhere_is_not_drawn_here() -> None:
    counted = CountedSampling()
    sampler = Sampler(4, frozenset(), Place(torch.device("cpu")), counted)
    for row in range(1, 4):
        empty = np.empty(0, np.int32)
        sampler.open(Opened(row, empty, empty, Sampling(max_new_tokens=9, seed=row, seeded=row == 2), None))
    rows = np.array([1, 2, 3], np.int32)
    logits = torch.randn(3, 50, generator=torch.Generator().manual_seed(0))
    alone = sampler.choose(logits.clone(), Turn(rows, rows)).token_ids
    assert counted.num_drawn == 3
    some = sampler.choose(logits.clone(), Turn(rows, rows, draws=sampler.settings.seeded[rows])).token_ids
    assert counted.num_drawn == 4
    assert some.tolist() == [int(logits[0].argmax()), int(alone[1]), int(logits[2].argmax())]


def test_rows_that_reject_draw_nothing_in_vain(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    counted = CountedSampling()
    monkeypatch.setattr("corymb.models.sampler.TorchSampling", lambda: counted)
    _, windows = run(tmp_path, requests(seeded=False)[:2])
    assert len(windows.said) > 20
    assert 2 <= counted.num_drawn < 50  # of 200: behind prompts, and where nothing is drafted


def drawn(drafter: DrawingDrafter) -> Iterator[tuple[int, tuple[int, ...]]]:
    """Index of an output token, and a key that it was drafted with."""
    for length, keys in drafter.drawn_with:
        for place, key in enumerate(keys.tolist()):
            yield length + place, tuple(key)  # the prompt is one token long, and so is the anchor


def test_drafts_with_a_seed_have_the_targets_noise_and_others_never_the_same_twice(tmp_path: Path) -> None:
    def of_target(index: int) -> tuple[int, ...]:
        return tuple(row_keys(np.array([FIRST_SEED], np.uint64), np.array([index], np.int32))[0].tolist())

    seeded, free = (list(drawn(run(tmp_path, requests(seeded=each)[:1])[0])) for each in (True, False))
    assert all(key == of_target(index) for index, key in seeded)
    assert all(one != other for one, other in combinations([key for _, key in free], 2))
    assert not {key for _, key in free} & {of_target(index) for index in range(NUM_TOKENS + NUM_DRAFTS)}
