"""Nothing wrong gets past the scheduler's door, whatever let it through before."""

import dataclasses
import math

import msgspec
import numpy as np
import pytest

from corymb.scheduler.door import MAX_PRIORITY, Limits, check
from corymb.scheduler.messages import LogprobOptions, TextOptions

from .bench import Bench, generate

LIMITS = Limits(vocab_size=128, context_length=64, eos_ids=frozenset({2}))
GOOD = generate("good", b"hello", max_new=8)
NAN, INF = math.nan, math.inf


def prompt_of(*token_ids):
    return np.array(token_ids, np.int32).tobytes()


SAMPLING = {
    "temperature": [NAN, INF, -INF, -0.1, 1e999],
    "top_p": [0.0, -0.1, 1.1, NAN],
    "top_k": [-1, -5, 2**31],
    "min_p": [-0.1, 2.0, NAN],
    "presence_penalty": [3.0, -3.0, NAN],
    "frequency_penalty": [3.0, -3.0, NAN],
    "repetition_penalty": [0.0, -1.0, NAN, INF],
    "min_new_tokens": [-1, 9],
    "max_new_tokens": [-1],
    "seed": [1 << 63, -(1 << 63) - 1],
    "logit_bias": [{128: 1.0}, {-1: 1.0}, {97: NAN}, {97: INF}, {97: 101.0}],
    "stop_token_ids": [(128,), (-1,), (1 << 40,), tuple([1] * 2000)],
}
OTHERS = {
    "rid": ["", "r" * 5000],
    "prompt": [
        b"",
        b"abc",
        b"abcde",
        prompt_of(-1),
        prompt_of(5, 128),
        prompt_of(2**31 - 1),
    ],
    "cache_salt": ["s" * 5000],
    "extra_key": ["s" * 5000],
    "routing_key": ["s" * 5000],
    "priority": [MAX_PRIORITY + 1, -MAX_PRIORITY - 1],
    "arrived_s": [NAN, INF],
    "logprobs": [
        LogprobOptions(top=-1),
        LogprobOptions(top=129),
        LogprobOptions(prompt_from=-2),
        LogprobOptions(prompt_from=6),
        LogprobOptions(token_ids=(128,)),
    ],
    "text": [
        TextOptions(stop=("",)),
        TextOptions(stop=("x" * 20_000,)),
        TextOptions(stop=("x",) * 2000),
        TextOptions(min_new_tokens=-1),
        TextOptions(prompt_tail=(128,)),
    ],
}


def judge(message, capacity=1000, live=()):
    return check(message, LIMITS, capacity=capacity, live=live)


def cases(fields):
    return [
        pytest.param(name, value, id=f"{name}-{i}") for name, all_ in fields.items() for i, value in enumerate(all_)
    ]


def test_a_good_request_enters():
    assert judge(GOOD) is None


@pytest.mark.parametrize(("name", "value"), cases(SAMPLING))
def test_wrong_sampling_values_are_refused_by_name(name, value):
    sampling = msgspec.structs.replace(GOOD.sampling, **{name: value})
    refusal = judge(msgspec.structs.replace(GOOD, sampling=sampling))
    assert (refusal.reason, refusal.status) == ("error", 400)
    assert refusal.message.startswith(f"{name}: ")


@pytest.mark.parametrize(("name", "value"), cases(OTHERS))
def test_wrong_values_around_sampling_are_refused_by_name(name, value):
    refusal = judge(msgspec.structs.replace(GOOD, **{name: value}))
    assert (refusal.reason, refusal.status) == ("error", 400)
    assert refusal.message.startswith(name) or name in {"text", "logprobs"}


@pytest.mark.parametrize(
    ("num_prompt", "max_new", "fits"), [(60, 4, True), (60, 5, False), (64, 0, True), (65, 0, False)]
)
def test_prompt_and_output_must_fit_the_context(num_prompt, max_new, fits):
    refusal = judge(generate("a", b"a" * num_prompt, max_new=max_new))
    assert (refusal is None) == fits
    if not fits:
        assert refusal.code == "context_length_exceeded"
        assert "maximum context length is 64 tokens" in refusal.message


def test_a_prompt_that_no_pool_can_hold_is_refused():
    refusal = judge(generate("a", b"a" * 33), capacity=32)
    assert refusal.code == "kv_pool_too_small"
    assert "--max-total-tokens" in refusal.message


def test_a_rid_is_taken_while_its_request_is_open():
    assert judge(GOOD, live={"good"}).code == "duplicate_rid"
    bench = Bench()
    bench.send(generate("a", max_new=1))
    bench.finish()
    bench.send(generate("a", max_new=1))
    bench.finish()
    assert [output.finish.reason for output in bench.of("a") if output.finish] == ["length", "length"]


@pytest.mark.parametrize(("name", "value"), [*cases(SAMPLING)[::4], *cases(OTHERS)[2::4]])
def test_a_refused_request_leaves_no_trace(name, value):
    bench = Bench(cache={"context_length": 64})
    bad = generate("bad", b"hello")
    if name in SAMPLING:
        bad = msgspec.structs.replace(bad, sampling=msgspec.structs.replace(bad.sampling, **{name: value}))
    else:
        bad = msgspec.structs.replace(bad, **{name: value})
    bench.send(bad, generate("good"))
    bench.finish()
    assert bench.finish_of(bad.rid).reason == "error"
    bench.check_exact("good")
    bench.check_empty()


def test_an_embedding_takes_one_token_and_a_model_that_has_hidden_states():
    can = msgspec.structs.replace(GOOD, embed=True, sampling=msgspec.structs.replace(GOOD.sampling, max_new_tokens=1))
    able = dataclasses.replace(LIMITS, can_embed=True)
    assert check(can, able, capacity=1000, live=()) is None
    assert "hidden states" in check(can, LIMITS, capacity=1000, live=()).message
    assert "max_new_tokens" in check(msgspec.structs.replace(GOOD, embed=True), able, capacity=1000, live=()).message
