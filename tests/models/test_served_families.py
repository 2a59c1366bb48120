"""Families whose caches hold more than keys and values, or whose tokens part ways: scheduler, cache and runner say what
transformers says, whatever is cached and however prompts are cut."""

from pathlib import Path

import numpy as np
import pytest
from by_loop import serve_rounds
from test_families import CASES, greedy, make_reference, random_prompt

from corymb.cache.block_files import BlockFiles
from corymb.cache.cache import Cache
from corymb.cache.storage import Storage
from corymb.models.architectures import read_config
from corymb.models.build import Built
from corymb.models.second_tier import SecondTier
from corymb.scheduler.messages import Generate, Sampling

FAMILIES = (
    "mixtral, sliding",
    "qwen3 moe, partly dense",
    "gpt-oss",
    "deepseek v3",
    "deepseek v3.2",
    "glm moe dsa, shared index",
)
VARIANTS: dict[str, dict[str, object]] = {
    "whole prompts": {},
    "chunks, mixed": {"chunked_prefill_size": 7, "enable_mixed_chunk": True},
    "chunks, no prefix cache": {"chunked_prefill_size": 16, "enable_prefix_cache": False},
    "pages, retraction": {"page_size": 4, "test_retract_interval": 3},
    "small pool": {"max_total_tokens": 160},
}
EVERYTHING = 1 << 30
NUM_OUTPUTS = 12  # as `greedy` makes
WINDOW = 24  # of the sliding ones; others choose 24 keys


def prompts() -> list[list[int]]:
    """Some share a prefix that is shorter than a window, some one that is longer."""
    stem = random_prompt(100, 60)
    return [stem[:10], stem[:10] + random_prompt(1, 30), stem, stem + random_prompt(2, 5), [*stem[:40], 5, 6]]


def generate(rid: str, token_ids: list[int]) -> Generate:
    sampling = Sampling(max_new_tokens=NUM_OUTPUTS, temperature=0.0, ignore_eos=True)
    return Generate(rid=rid, prompt=np.array(token_ids, np.int32).tobytes(), sampling=sampling)


@pytest.fixture(scope="module", params=FAMILIES)
def family(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[list[int]]]:
    """A model's folder, and what transformers answers."""
    folder = tmp_path_factory.mktemp("family")
    reference = make_reference(*CASES[request.param])
    reference.save_pretrained(folder)
    return folder, [greedy(reference, prompt).outputs for prompt in prompts()]


@pytest.mark.parametrize("variant", VARIANTS)
def test_served_tokens_are_those_of_transformers(family: tuple[Path, list[list[int]]], variant: str) -> None:
    folder, expected = family
    requests = [generate(str(number), prompt) for number, prompt in enumerate(prompts())]
    options = {"dtype": "float32", "max_running_requests": 4, **VARIANTS[variant]}
    first, second = serve_rounds(folder, [requests, requests], options)
    for port in (first, second):
        assert [port.token_ids(str(number)) for number in range(len(requests))] == expected
    cached = second.stats.num_cached_tokens - first.stats.num_cached_tokens
    assert (cached > 0) == (VARIANTS[variant].get("enable_prefix_cache", True))


@pytest.mark.parametrize("interval", [1, 5])
def test_losing_one_kind_of_memory_alone_changes_no_token(family: tuple[Path, list[list[int]]], interval: int) -> None:
    folder, expected = family
    requests = [generate(str(number), prompt) for number, prompt in enumerate(prompts())]
    options: dict[str, object] = {"dtype": "float32", "max_running_requests": 3, "chunked_prefill_size": 16}
    for component in ("full", "sliding") if read_config(folder).window else ("full",):
        num_steps = num_evicted = 0

        def evict(cache: Cache, component: str = component) -> None:
            nonlocal num_steps, num_evicted
            num_steps += 1
            if num_steps % interval == 0:
                actions = cache.tree.evict({component: EVERYTHING})
                num_evicted += sum(map(len, actions.frees.get(component, ())))
                cache.execute(actions)
                cache.check()

        for port in serve_rounds(folder, [requests, requests], options, after_step=evict):
            assert [port.token_ids(str(number)) for number in range(len(requests))] == expected
        assert num_evicted > 0


def test_other_tiers_give_back_what_the_device_lost(family: tuple[Path, list[list[int]]], tmp_path: Path) -> None:
    folder, expected = family
    picked = (1, 3)  # that have nothing in common but what is shorter than a window
    first = [generate(str(number), prompts()[number]) for number in picked]
    again = [generate(str(number), prompts()[number] + expected[number]) for number in picked]
    plain: dict[str, object] = {"dtype": "float32", "max_running_requests": 2}
    (unaided,) = serve_rounds(folder, [again], plain)
    tiers = plain | {"second_tier": SecondTier(), "hicache_storage_prefetch_policy": "wait_complete"}
    caches: list[Cache] = []

    def make_storage(built: Built) -> Storage:
        assert built.host is not None
        return Storage(BlockFiles(tmp_path, None), built.host.contents, b"this one", page_size=1, block_tokens=8)

    def forget(cache: Cache) -> None:
        caches.append(cache)
        if not cache.leases:
            cache.execute(cache.tree.evict({"full": EVERYTHING}))

    _, aided = serve_rounds(folder, [first, again], tiers, after_step=forget, make_storage=make_storage)
    (later,) = serve_rounds(folder, [again], tiers, after_step=forget, make_storage=make_storage)
    for port in (aided, later):
        assert [port.token_ids(each.rid) for each in again] == [unaided.token_ids(each.rid) for each in again]
        ends = [len(each.prompt) // 4 - 1 for each in again]
        assert [port.outputs[each.rid][0].num_cached_tokens for each in again] == ends
    moved = [cache.host.moved for cache in (caches[0], caches[-1]) if cache.host]
    assert min(moved[0].loaded.values()) > 0
    assert min(moved[1].restored.values()) > 0
