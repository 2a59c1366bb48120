"""Requests that draft get what they get without drafts, and give everything back, however their memory is managed."""

import pytest

from .bench import Bench, generate

VARIANTS = {
    "no overlap": {"overlap_depth": 0},
    "overlap": {},
    "pages": {"cache": {"page_size": 16}},
    "tight": {"cache": {"num_full_tokens": 160}},
    "tight pages": {"cache": {"num_full_tokens": 256, "page_size": 16}},
    "sliding": {"cache": {"sliding_window": 8, "num_sliding_tokens": 320}},
    "retraction": {"test_retract_interval": 3},
    "no cache": {"test_force_cache_miss": True},
    "few rows": {"max_running_requests": 2},
    "near the end of the context": {"cache": {"context_length": 74}},
}


@pytest.mark.parametrize("drafts", [1, 6])
@pytest.mark.parametrize("variant", VARIANTS.values(), ids=VARIANTS)
def test_texts_are_those_without_drafts(variant, drafts) -> None:
    bench = Bench(drafts=drafts, **variant)
    for number in range(12):
        prompt = b"a prompt of some length " + bytes([97 + number]) * (number + 1)
        least = number % 4
        bench.send(generate(f"r{number}", prompt, max_new=4 + 3 * number, seed=number, min_new_tokens=least))
        bench.step(number % 3)
    bench.finish()
    for rid in bench.sent:
        bench.check_exact(rid)
    bench.check_empty()
    assert bench.scheduler.stats().draft_steps > 0
    assert sum(bench.scheduler.stats().drafts_accepted) > 0
