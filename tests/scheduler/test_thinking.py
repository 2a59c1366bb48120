"""A thought that goes on for too long is ended; nothing else changes."""

import pytest

from corymb.scheduler.messages import Grammar, Thinking
from corymb.scheduler.thinking import ThinkingLimit

from .bench import Bench, generate
from .test_grammars import COUNT, VARIANTS, bench_that_knows, rising

YZ = (ord("y"), ord("z"))


def run(*requests, **options) -> Bench:
    bench = Bench(**options)
    bench.send(*requests)
    bench.finish()
    bench.check_empty()
    return bench


def limited(**fields):
    return generate("a", max_new=12, ignore_eos=True, **thinking(**fields))


def unlimited(**options) -> list[int]:
    """What it says without an end in sight. The simulated runner chooses otherwise where there is no mask at all."""
    return run(limited(max_tokens=1000), **options).tokens("a")


def thinking(**fields) -> dict:
    return {"thinking": Thinking(**{"max_tokens": 4, "end": YZ} | fields)}


@pytest.mark.parametrize("variant", [{}, *VARIANTS.values()], ids=["as it is", *VARIANTS])
def test_the_end_is_written_after_so_many_tokens(variant) -> None:
    bench = run(limited(), generate("plain", max_new=12), **variant)
    tokens = bench.tokens("a")
    assert tokens[:4] == unlimited(**variant)[:4]
    assert tuple(tokens[4:6]) == YZ
    assert len(tokens) == 12
    assert tuple(tokens[6:8]) != YZ, "once"
    bench.check_exact("plain")


def test_a_thought_that_ends_by_itself_is_left_alone() -> None:
    said = unlimited()
    tokens = run(limited(max_tokens=6, end=tuple(said[2:4]))).tokens("a")
    assert tokens[:4] == said[:4]
    assert tokens[6:8] != said[2:4]


def test_an_output_that_does_not_begin_with_a_thought_is_left_alone() -> None:
    said = unlimited()
    other = (said[0], (said[1] + 1) % 128)
    assert tuple(run(limited(begin=other)).tokens("a")[4:6]) != YZ
    begun = run(limited(begin=tuple(said[:2]))).tokens("a")
    assert (begun[:4], tuple(begun[4:6])) == (said[:4], YZ)
    assert tuple(run(limited(max_tokens=0, begin=tuple(said[:2]))).tokens("a")[2:4]) == YZ


def test_a_grammar_goes_on_behind_the_thought() -> None:
    bench = bench_that_knows()
    grammar = Grammar(COUNT.kind, COUNT.text, after=YZ)
    bench.send(generate("a", max_new=40, grammar=grammar, **thinking()))
    bench.finish()
    tokens = bench.tokens("a")
    assert tuple(tokens[4:6]) == YZ
    assert rising(tokens[6:-1])
    assert bench.finish_of("a").reason == "stop"


def test_the_end_is_found_whatever_went_before_it() -> None:
    limit = ThinkingLimit(Thinking(max_tokens=3, end=(1, 1, 2)))
    for token in (1, 1, 1):
        assert limit.forced is None
        limit.advance(token)
    assert limit.forced == 2  # the last two are its beginning
    limit.advance(2)
    assert limit.is_over
    assert limit.forced is None


@pytest.mark.parametrize("wrong", [{"max_tokens": -1}, {"end": (128,)}, {"begin": (-1,)}])
def test_a_limit_that_makes_no_sense_is_refused_at_the_door(wrong) -> None:
    assert run(generate("a", **thinking(**wrong))).finish_of("a").reason == "error"
