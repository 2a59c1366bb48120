"""Routed experts in Triton against their definition and against plain torch."""

import pytest
import torch

from corymb.kernels import reference_experts
from corymb.kernels.reference_experts import Expert
from corymb.kernels.routing import Gating, Routing
from corymb.kernels.torch_experts import route
from corymb.kernels.triton_experts import Stacked, choose_tile, mix
from corymb.kernels.triton_routing import choose, group
from corymb.models.warm_up import EVERY_WIDTH, MANY

CLAMPED = Gating(slope=1.702, lift=1.0, limit=0.7)
ROUTINGS = {
    "softmax": Routing(6, 2, normalized=False),
    "normalized": Routing(8, 3),
    "groups": Routing(12, 3, scores="sigmoid", num_groups=3, top_groups=2, scale=2.5),
}
DEEPSEEK = Routing(256, 8, scores="sigmoid", num_groups=8, top_groups=4, scale=2.5)


def random_experts(place, routing, hidden, inner, *, dtype=torch.float32, biased=False) -> Stacked:
    count = routing.num_experts

    def normal(*shape):
        return place.normal(*shape, dtype=dtype, scale=shape[-1] ** -0.5)

    biases = (normal(count, 2 * inner), normal(count, hidden)) if biased else (None, None)
    return Stacked(normal(count, 2 * inner, hidden), normal(count, hidden, inner), *biases)


def defined(x, logits, routing, gating, correction, experts: Stacked):
    """The layer as its definition says, tokens and experts one at a time."""
    biases = (None if one is None else one.cpu() for one in (experts.gate_up_bias, experts.down_bias))
    gate_up_bias, down_bias = biases
    each = [
        Expert(gate_up, down, *(None if one is None else one[number] for one in (gate_up_bias, down_bias)))
        for number, (gate_up, down) in enumerate(zip(experts.gate_up.cpu(), experts.down.cpu(), strict=True))
    ]
    correction = None if correction is None else correction.tolist()
    chosen = [reference_experts.choose(row, routing, correction) for row in logits.tolist()]
    return reference_experts.mix(x.cpu(), each, chosen, gating).to(x.device)


@pytest.mark.parametrize("name", [*ROUTINGS, pytest.param("deepseek", marks=pytest.mark.gpu)])
@pytest.mark.parametrize("corrected", [False, True])
def test_choice_is_that_of_plain_torch_among_equals_too(place, name, corrected) -> None:
    routing = {**ROUTINGS, "deepseek": DEEPSEEK}[name]
    logits = place.put(place.numbers.integers(-2, 3, (9, routing.num_experts)).astype("float32"))
    correction = place.put(place.numbers.integers(0, 2, routing.num_experts).astype("float32")) if corrected else None
    expected = route(logits, routing, correction)
    ids, weights = choose(logits, routing, correction, launch=place.launch)
    assert torch.equal(ids.long(), expected.ids)
    place.assert_close(weights, expected.weights, 1e-6)


def test_numbers_that_are_none_choose_experts_that_exist(place) -> None:
    logits = place.poison(2, 12)
    ids, _ = choose(logits, ROUTINGS["groups"], None, launch=place.launch)
    assert ((ids >= 0) & (ids < 12)).all()


@pytest.mark.parametrize("num_tokens", [1, 3, 700])
def test_pairs_of_an_expert_stand_together_in_their_order(place, num_tokens) -> None:
    ids = place.put(place.numbers.integers(0, 4, (num_tokens, 2)).astype("int32") * 2)  # odd experts get none
    pairs = group(ids, 8, 16, launch=place.launch)
    total = int(pairs.total)
    flat, order, owners = ids.view(-1).tolist(), pairs.order.tolist(), pairs.experts.tolist()
    listed = [[p for p in order[16 * b : 16 * b + 16] if p < pairs.num_pairs] for b in range(total)]
    named = {owners[b]: [] for b in range(total)}
    for block, some in enumerate(listed):
        named[owners[block]] += some
    by_expert = {expert: [pair for pair, own in enumerate(flat) if own == expert] for expert in set(flat)}
    assert named == by_expert
    assert sum(map(len, listed)) == len(flat)
    assert total <= pairs.most_blocks


@pytest.mark.parametrize("name", ROUTINGS)
@pytest.mark.parametrize("gating", [Gating(), CLAMPED], ids=["swiglu", "clamped"])
def test_tokens_get_their_experts_weighed(place, tolerance, name, gating) -> None:
    routing = ROUTINGS[name]
    experts = random_experts(place, routing, 40, 24, biased=gating is CLAMPED)
    x, logits = place.normal(11, 40), place.normal(11, routing.num_experts)
    correction = place.normal(routing.num_experts) if routing.scores == "sigmoid" else None
    out = mix(x, logits, routing, gating, correction, experts, launch=place.launch)
    place.assert_close(out, defined(x, logits, routing, gating, correction, experts), tolerance(torch.float32))


REAL = {
    "mixtral": (Routing(8, 2), 4096, 14336, [1, 7, 300]),
    "qwen3": (Routing(128, 8), 2048, 768, [1, 64, 2000]),
    "deepseek on 8": (DEEPSEEK, 7168, 256, [1, 32, 500]),
    "gpt-oss": (Routing(32, 4), 2880, 2880, [1, 50, 900]),
}


@pytest.mark.gpu
@pytest.mark.parametrize("name", REAL)
def test_real_shapes(place, tolerance, name) -> None:
    routing, hidden, inner, steps = REAL[name]
    experts = random_experts(place, routing, hidden, inner, dtype=torch.bfloat16)
    for num_tokens in steps:
        x = place.normal(num_tokens, hidden, dtype=torch.bfloat16)
        logits = place.normal(num_tokens, routing.num_experts)
        out = mix(x, logits, routing, Gating(), None, experts, launch=place.launch)
        few = slice(0, 5)  # the definition takes its time
        expected = defined(x[few], logits[few], routing, Gating(), None, experts)
        place.assert_close(out[few], expected, 2 * tolerance(torch.bfloat16))  # rounded twice
        assert out.isfinite().all()


@pytest.mark.parametrize("num_tokens", [40, pytest.param(3000, marks=pytest.mark.gpu)])
def test_a_token_keeps_its_bits_in_any_company(place, num_tokens) -> None:
    routing = ROUTINGS["groups"]
    experts = random_experts(place, routing, 64, 48, dtype=torch.bfloat16)
    x, logits = place.normal(num_tokens, 64, dtype=torch.bfloat16), place.normal(num_tokens, 12)

    def run(rows):
        return mix(x[rows], logits[rows], routing, Gating(), None, experts, launch=place.launch, invariant=True)

    together = run(slice(None))
    for rows in (slice(0, 1), slice(3, 20), slice(num_tokens - 1, None)):
        assert torch.equal(run(rows), together[rows])


def test_tiles_grow_with_the_pairs_of_an_expert() -> None:
    sizes = [choose_tile(pairs, 128).block_m for pairs in (1, 8 * 128, 9 * 128, 64 * 128, 65 * 128)]
    assert sizes == [16, 16, 64, 64, 128]
    assert len({choose_tile(pairs, 128, invariant=True) for pairs in (1, 1000, 100_000)}) == 1


@pytest.mark.parametrize("name", REAL)
def test_a_warm_up_meets_every_tile(name) -> None:
    routing, *_ = REAL[name]

    def tile(num_tokens):
        return choose_tile(num_tokens * routing.top_k, routing.num_experts)

    assert {tile(count) for count in (*EVERY_WIDTH, *MANY)} == {tile(count) for count in range(1, 8193)}
