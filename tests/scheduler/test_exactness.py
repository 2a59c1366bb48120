"""What requests get must not depend on how steps are cut."""

import itertools

import pytest

from .bench import Bench, generate

OPTIONS = {
    "depth": [0, 1],
    "page": [1, 16],
    "chunk": [32, 4096],
    "mixed": [False, True],
    "retract": [None, 3],
    "pool": [4096, 208],
    "window": [0, 24],
}
MATRIX = list(itertools.product(*OPTIONS.values()))


@pytest.mark.parametrize(tuple(OPTIONS), MATRIX)
def test_output_does_not_depend_on_how_steps_are_cut(depth, page, chunk, mixed, retract, pool, window):
    sliding = {"num_sliding_tokens": max(pool // 2, 160), "sliding_window": window} if window else {}
    bench = Bench(
        cache={"page_size": page, "num_full_tokens": pool, **sliding},
        depth=depth,
        chunked_prefill_size=chunk,
        enable_mixed_chunk=mixed,
        test_retract_interval=retract,
    )
    for i in range(6):
        prompt = b"shared beginning of a prompt, " * (1 + i % 3) + bytes([65 + i])
        bench.send(
            generate(f"r{i}", prompt, max_new=25, ignore_eos=i % 2 == 0, seed=i, prompt_from=None if i % 2 else 10 * i)
        )
        bench.step(i % 3)
    bench.finish()
    for rid in bench.sent:
        bench.check_exact(rid)
    if retract:
        assert bench.scheduler.stats().num_retractions > 0
    bench.check_empty()


@pytest.mark.parametrize("depth", [0, 1])
@pytest.mark.parametrize("window", [0, 8])
@pytest.mark.parametrize("conservativeness", [1.0, 0.1])
def test_a_pool_far_too_small_retracts_and_changes_nothing(depth, window, conservativeness):
    sliding = {"num_sliding_tokens": 256, "sliding_window": window} if window else {}
    bench = Bench(
        cache={"num_full_tokens": 257, **sliding}, overlap_depth=depth, schedule_conservativeness=conservativeness
    )
    for i in range(16):
        bench.send(
            generate(f"r{i}", b"prompt %2d" % i, max_new=64, ignore_eos=True, frequency_penalty=i % 2, prompt_from=0)
        )
    bench.finish()
    for rid in bench.sent:
        bench.check_exact(rid)
    assert bench.scheduler.stats().num_retractions > 0
    bench.check_empty()


@pytest.mark.parametrize("depth", [2, 4])
@pytest.mark.parametrize("mixed", [False, True])
def test_results_may_be_later_still(depth, mixed):
    """The scheduler does not care how many steps are in flight: a retracted request comes back only when all its tokens
    have arrived."""
    bench = Bench(depth=depth, enable_mixed_chunk=mixed, chunked_prefill_size=16, test_retract_interval=2)
    for i in range(6):
        bench.send(generate(f"r{i}", b"some prompt %d, " % i * (1 + i % 3), max_new=25, ignore_eos=i % 2 == 0, seed=i))
        bench.step(i % 3)
    bench.finish()
    for rid in bench.sent:
        bench.check_exact(rid)
    bench.check_empty()


@pytest.mark.parametrize("cache", [{}, {"enable_prefix_cache": False}, {"page_size": 4}])
@pytest.mark.parametrize("chunk", [1, 7, 100, 101])
def test_a_repeated_prompt_hits_the_cache_and_changes_nothing(cache, chunk):
    bench = Bench(cache=cache, chunked_prefill_size=chunk)
    for rid in ("cold", "warm"):
        bench.send(generate(rid, b"ab" * 50, max_new=32))
        bench.finish()
        bench.check_exact(rid)
    page = bench.cache.config.page_size
    hit = 99 // page * page if bench.cache.config.enable_prefix_cache else 0
    assert bench.of("cold")[0].num_cached_tokens == 0
    assert bench.of("warm")[0].num_cached_tokens == hit
    assert bench.scheduler.stats().num_cached_tokens == hit


def test_a_forced_miss_computes_everything_again():
    bench = Bench(test_force_cache_miss=True)
    for rid in ("first", "second"):
        bench.send(generate(rid, b"ab" * 50))
        bench.finish()
        bench.check_exact(rid)
    assert bench.of("second")[0].num_cached_tokens == 0


def test_salts_do_not_share():
    bench = Bench()
    for rid, salt in (("a", "one"), ("b", "two"), ("c", None), ("d", "one")):
        bench.send(generate(rid, b"ab" * 50, salt=salt))
        bench.finish()
        bench.check_exact(rid)
    assert [bench.of(rid)[0].num_cached_tokens for rid in "abcd"] == [0, 0, 0, 99]


def test_a_chunk_is_shared_before_its_prompt_is_complete():
    bench = Bench(chunked_prefill_size=16, overlap_depth=0)
    bench.send(generate("long", b"0123456789" * 10))
    bench.step(3)
    assert not bench.of("long")
    bench.send(generate("short", b"0123456789" * 3))
    bench.finish()
    assert bench.of("short")[0].num_cached_tokens == 29
    bench.check_exact("long")
    bench.check_exact("short")


@pytest.mark.parametrize("prompt_from", [0, 1, 5, 29, 30, 99, 100])
@pytest.mark.parametrize("chunk", [3, 32, 4096])
def test_prompt_logprobs_survive_chunks_and_a_warm_cache(prompt_from, chunk):
    bench = Bench(chunked_prefill_size=chunk)
    for rid in ("cold", "warm", "echo"):
        bench.send(generate(rid, b"abcdefghij" * 10, prompt_from=prompt_from, max_new=0 if rid == "echo" else 4))
        bench.finish()
        bench.check_exact(rid)
    assert bench.of("warm")[0].num_cached_tokens == min(max(prompt_from - 1, 0), 99)


def test_asking_for_no_tokens_computes_the_prompt_and_gives_none():
    bench = Bench(chunked_prefill_size=16)
    bench.send(generate("none", b"0123456789" * 10, max_new=0))
    bench.finish()
    assert bench.tokens("none") == []
    assert bench.finish_of("none").reason == "length"
    assert bench.scheduler.stats().num_prefill_tokens == 100
    bench.check_empty()
