"""Exact laws: what a step with windows says follows the target exactly, if its budget is fixed before it drafts.

Rational arithmetic over every draft that can come. The windows are the product's own (`allocation.allot`); confidences
are fractions of two, so that they are exact there too.
"""

import itertools
import math
import random
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
import pytest

from corymb.speculative.allocation import allot, survival

TOKENS = (0, 1)
Text = tuple[int, ...]
Law = dict[Text, Fraction]


@dataclass
class Request:
    """A target, a draft and a confidence, each a function of what was said before."""

    target: dict[Text, Law]  # by prefix, of one token more
    draft: dict[Text, Law]
    confidence: dict[Text, float]  # by prefix: of the draft that follows it


def some_law(numbers: random.Random) -> Law:
    first = Fraction(numbers.randint(1, 9), 10)
    return {(0,): first, (1,): 1 - first}


def make_request(numbers: random.Random, num_drafts: int, num_steps: int = 1) -> Request:
    longest = num_steps * (num_drafts + 1)
    texts = [text for size in range(longest + 1) for text in itertools.product(TOKENS, repeat=size)]
    return Request(
        {text: some_law(numbers) for text in texts},
        {text: some_law(numbers) for text in texts},
        {text: numbers.choice([0.0625, 0.25, 0.5, 0.75, 0.9375]) for text in texts},
    )


def texts_of(laws: dict[Text, Law], start: Text, size: int) -> Iterator[tuple[Text, Fraction]]:
    """Every continuation of `size` tokens, with its probability."""
    for tail in itertools.product(TOKENS, repeat=size):
        chance = Fraction(1)
        for place, token in enumerate(tail):
            chance *= laws[start + tail[:place]][(token,)]
        yield tail, chance


def outcomes(request: Request, drafts: Text, window: int, start: Text = ()) -> Iterator[tuple[Text, Fraction]]:
    """What a window of these drafts says behind `start`, by the rule of `kernels.acceptance.reject`."""
    chance = Fraction(1)
    for place in range(window):
        said = drafts[:place]
        target, draft, token = request.target[start + said], request.draft[start + said], (drafts[place],)
        accepts = min(Fraction(1), target[token] / draft[token])
        rest = {each: max(target[each] - draft[each], Fraction(0)) for each in target}
        total = sum(rest.values())
        if total:
            for each, weight in rest.items():
                yield said + each, chance * (1 - accepts) * weight / total
        chance *= accepts
    for each, probability in request.target[start + drafts[:window]].items():
        yield drafts[:window] + each, chance * probability


def law_of_step(requests: list[Request], num_drafts: int, windows_of: Callable[[np.ndarray], list[int]]) -> Law:
    """Of all requests' first num_drafts + 1 tokens, one behind another, each going on as plain decoding does."""
    law: Law = defaultdict(Fraction)
    blocks = [list(texts_of(request.draft, (), num_drafts)) for request in requests]
    for drafted in itertools.product(*blocks):
        confidence = [
            [request.confidence[drafts[:place]] for place in range(num_drafts)]
            for request, (drafts, _) in zip(requests, drafted, strict=True)
        ]
        windows = windows_of(survival(np.array(confidence, np.float32)))
        parts = [
            [
                (said + tail, chance * more)
                for said, chance in outcomes(request, drafts, window)
                for tail, more in texts_of(request.target, said, num_drafts + 1 - len(said))
            ]
            for request, (drafts, _), window in zip(requests, drafted, windows, strict=True)
        ]
        drawn = Fraction(1)
        for _, chance in drafted:
            drawn *= chance
        for said in itertools.product(*parts):
            chance = drawn
            for _, more in said:
                chance *= more
            law[sum((text for text, _ in said), ())] += chance
    return law


def plain_law(requests: list[Request], num_drafts: int) -> Law:
    law: Law = defaultdict(Fraction)
    for said in itertools.product(*[list(texts_of(each.target, (), num_drafts + 1)) for each in requests]):
        chance = Fraction(1)
        for _, more in said:
            chance *= more
        law[sum((text for text, _ in said), ())] += chance
    return law


def total_variation(one: Law, other: Law) -> Fraction:
    return (
        sum((abs(one.get(text, Fraction(0)) - other.get(text, Fraction(0))) for text in {*one, *other}), Fraction(0))
        / 2
    )


def with_budget(budget: int, num_drafts: int) -> Callable[[np.ndarray], list[int]]:
    return lambda survivals: allot(survivals, np.full(len(survivals), num_drafts, np.int32), budget).tolist()


def best_of_today(costs: list[float], num_drafts: int) -> Callable[[np.ndarray], list[int]]:
    """The budget that today's own survivals make best: what must not be done."""

    def windows(survivals: np.ndarray) -> list[int]:
        ordered = np.sort(survivals.ravel())[::-1]
        rates = [(len(survivals) + ordered[:k].sum()) / costs[k] for k in range(len(ordered) + 1)]
        return with_budget(int(np.argmax(rates)), num_drafts)(survivals)

    return windows


@pytest.mark.parametrize(("num_requests", "num_drafts"), [(1, 2), (1, 3), (2, 2)])
def test_a_budget_fixed_before_leaves_the_law_as_it_is(num_requests: int, num_drafts: int) -> None:
    numbers = random.Random(num_requests * 10 + num_drafts)
    for _ in range(6 if num_requests == 1 else 2):
        requests = [make_request(numbers, num_drafts) for _ in range(num_requests)]
        plain = plain_law(requests, num_drafts)
        for budget in range(num_requests * num_drafts + 1):
            law = law_of_step(requests, num_drafts, with_budget(budget, num_drafts))
            assert sum(law.values()) == 1
            assert total_variation(law, plain) == 0


def test_a_budget_from_the_same_steps_confidence_is_biased() -> None:
    """So the test above can fail."""
    numbers, worst = random.Random(3), Fraction(0)
    for _ in range(20):
        requests = [make_request(numbers, 3)]
        costs = [1.0 + numbers.random() * 0.2 + 0.3 * k for k in range(4)]
        law = law_of_step(requests, 3, best_of_today(costs, 3))
        worst = max(worst, total_variation(law, plain_law(requests, 3)))
    assert worst > Fraction(1, 100)


def test_two_requests_share_a_budget_of_three_places() -> None:
    numbers = random.Random(8)
    requests = [make_request(numbers, 3) for _ in range(2)]
    plain = plain_law(requests, 3)
    assert total_variation(law_of_step(requests, 3, with_budget(3, 3)), plain) == 0


State = tuple[tuple[Text, ...], tuple[int, int]]  # what was said, and the budgets of the next two steps
BudgetOf = Callable[[np.ndarray], int]


def law_of_steps(requests: list[Request], num_drafts: int, *, lag: int, budget_of: BudgetOf, size: int) -> Law:
    """Of the first `size` tokens of all requests after three steps. The last step's budget is that of the survivals
    `lag` steps before; of those before it each has one draft."""
    states: dict[State, Fraction] = {(((),) * len(requests), (1, 1)): Fraction(1)}
    for step in range(3):
        after: dict[State, Fraction] = defaultdict(Fraction)
        for (texts, budgets), chance in states.items():
            each = zip(requests, texts, strict=True)
            blocks = [list(texts_of(request.draft, text, num_drafts)) for request, text in each]
            for drafted in itertools.product(*blocks):
                confidence = [
                    [request.confidence[text + drafts[:place]] for place in range(num_drafts)]
                    for request, text, (drafts, _) in zip(requests, texts, drafted, strict=True)
                ]
                survivals = survival(np.array(confidence, np.float32))
                now = budget_of(survivals) if step == 2 and not lag else budgets[0]
                windows = with_budget(now, num_drafts)(survivals)
                drawn = chance * math.prod(more for _, more in drafted)
                ends = [
                    [(text + said, more) for said, more in outcomes(request, drafts, window, text)]
                    for request, text, (drafts, _), window in zip(requests, texts, drafted, windows, strict=True)
                ]
                for end in itertools.product(*ends):
                    key = tuple(text for text, _ in end), (budgets[1], budget_of(survivals))
                    after[key] += drawn * math.prod(more for _, more in end)
        states = after
    law: Law = defaultdict(Fraction)
    for (texts, _), chance in states.items():
        tails = [
            list(texts_of(request.target, text, max(size - len(text), 0)))
            for request, text in zip(requests, texts, strict=True)
        ]
        for tail in itertools.product(*tails):
            said = [(text + more)[:size] for text, (more, _) in zip(texts, tail, strict=True)]
            law[sum(said, ())] += chance * math.prod(more for _, more in tail)
    return law


def best_by(costs: list[float]) -> BudgetOf:
    def budget_of(survivals: np.ndarray) -> int:
        ordered = np.sort(survivals.ravel())[::-1]
        return int(np.argmax([(len(survivals) + ordered[:k].sum()) / costs[k] for k in range(len(ordered) + 1)]))

    return budget_of


@pytest.mark.parametrize(("num_requests", "num_drafts", "size"), [(1, 2, 6), (2, 1, 4)])
def test_three_steps_whose_budgets_follow_confidence_two_steps_old_leave_the_law_as_it_is(
    num_requests: int, num_drafts: int, size: int
) -> None:
    numbers, used = random.Random(num_requests), set()
    for _ in range(4 if num_requests == 1 else 1):
        requests = [make_request(numbers, num_drafts, 3) for _ in range(num_requests)]
        budget_of = best_by([1.0 + numbers.random() * 0.2 + 0.4 * k for k in range(num_requests * num_drafts + 1)])
        used |= {budget_of(survival(np.full((num_requests, num_drafts), chance, np.float32))) for chance in (0.1, 0.9)}
        law = law_of_steps(requests, num_drafts, lag=2, budget_of=budget_of, size=size)
        assert sum(law.values()) == 1
        assert total_variation(law, plain_law(requests, size - 1)) == 0
    assert len(used) > 1, "the budget never depended on confidence"


def test_three_steps_of_which_the_last_looks_at_its_own_confidence_are_biased() -> None:
    """So the test above can fail."""
    numbers, worst = random.Random(2), Fraction(0)
    for _ in range(2):
        requests = [make_request(numbers, 3, 3)]
        budget_of = best_by([1.0, 1.4, 1.5, 1.6])  # all or nothing
        law = law_of_steps(requests, 3, lag=0, budget_of=budget_of, size=6)
        worst = max(worst, total_variation(law, plain_law(requests, 5)))
    assert worst > Fraction(1, 1000)
